"""Durable runs under fire: workers, broker and database are killed at random while runs advance; then what happened is counted outside."""
