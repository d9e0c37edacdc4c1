"""`./run bench`: how long an operator waits, measured beside the real Recall client on the same server in the same run."""
