"""The demo: real agents that really die, a console to settle what they left, all on one machine."""
