"""``floeplan demo``: builds a table of three partition specs and runs the main commands on it."""
