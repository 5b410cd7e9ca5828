"""Side-by-side measurements; `bench.__main__` has the commands, docs/performance.md results."""
