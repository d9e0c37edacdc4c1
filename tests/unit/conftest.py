"""Hypothesis in short, and without a deadline: a busy machine is no failure."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("settle", deadline=None, max_examples=50)
settings.load_profile("settle")
