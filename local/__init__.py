"""Servers and tools of a laptop: what demo, tests and benchmarks start, and the upkeep of locks and vendored files. Not in the product."""
