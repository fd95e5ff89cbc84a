"""Benchmarks against other tools, one suite per module; `python -m bench` runs them."""
