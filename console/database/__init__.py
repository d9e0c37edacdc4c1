"""How Django reaches the console's own database; the engine itself is in base.py, where Django looks for it."""
