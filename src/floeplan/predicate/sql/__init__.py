"""Compile Spark-SQL text into the IR.

::

    text -> split (tokens, boolean operators) -> pieces -> fast_path   column op literal, column IN (literals)
                                                        -> parse       everything else, through sqlglot
         -> compiler: IR, or Opaque with a CompileError

Rule: every piece becomes IR with exactly Spark's rows, or stays ``Opaque`` and is evaluated on rows. Fail-safe: the
fast path leaves every piece that it does not recognise to the parser, and text that Spark and sqlglot could group
differently is a syntax error until it has parentheses.

Modules in reading order:

* ``split``: tokens; AND, OR, NOT and parentheses; syntax errors with their offset; the one parser bypass, with its
  measured gain.
* ``parse``: sqlglot's tree of one piece, its columns bound by field id.
* ``compiler``: from a bound tree to IR; ``compile_sql`` and ``compile_value`` are the entry points.

Imported by ``floeplan.predicate.compile`` and by ``floeplan.dml``, which also compiles value expressions. It imports
``floeplan.predicate.rows`` to fold constants, never the other way round.
"""
