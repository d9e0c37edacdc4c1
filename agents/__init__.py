"""The agent's side, as a library: works in a plain script, knows nothing of Django."""
