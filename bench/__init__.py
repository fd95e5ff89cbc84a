"""Measurements against other tools, one suite a module; `python -m bench` runs them."""
