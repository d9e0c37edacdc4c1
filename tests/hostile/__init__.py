"""Texts that agents might write to fool a person or a screen, and the pages they are run through."""
