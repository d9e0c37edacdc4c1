"""The real Recall against ours, in both directions, on a real PostgreSQL: where the two disagree, Recall's binary decides."""
