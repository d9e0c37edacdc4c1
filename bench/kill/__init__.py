"""`./run bench kill`: agents are killed in the middle of their calls, and what becomes of each call is counted in the world."""
