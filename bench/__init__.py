"""Side-by-side measurements: ``python -m bench cells|create|contexts``. See docs/performance.md for results."""
