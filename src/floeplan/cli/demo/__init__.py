"""``floeplan demo``: every feature, end to end, on a small table whose partition spec evolves twice.

- ``command``: the command, and how chapters are printed.
- ``chapters``: one function per chapter; every figure comes from the result of the step itself.
- ``archive``: the table, and the same table as written by a tool that ignores partition specs.
"""
