"""An operator's gestures, for pages, API, tasks and commands alike. They know nothing of HTTP; each checks access itself."""
