"""MERGE: join a source with the table, then update, delete and insert rows in one commit.

Rule: conjuncts ``target.a = source.b`` of the ON condition are keys. The source is indexed by its keys and sent to the
tasks, which join it with whole columns of the files that may hold those keys. Spark joins when Arrow cannot evaluate an
expression or the source is too large to send.

Fail-safe: a target row that two source rows would change is an error, and nothing is committed.

Modules in reading order: ``builder`` (``merge`` and its fluent clauses), ``clauses`` (the statement and its compiled
clauses), ``condition`` (names and keys of the ON condition), ``run`` (plans, joins, inserts, commits), ``join`` (the
key index and the decision for one file), ``on_spark`` (the join by Spark).

``builder`` is imported from outside; the other modules are internal to the package.
"""
