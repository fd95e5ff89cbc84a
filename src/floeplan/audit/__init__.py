"""Auditing scans: which logged queries read too much, why, and which layout would help.

Every plan can write a scan report. ``audit`` aggregates any number of them on Spark and flags queries; ``advise``
simulates partitionings, sort orders and clusterings of one table and estimates the bytes its logged queries would read.

Rule: an estimate uses the evaluator of scan planning, on bounds that a real file could have. Fail-safe: a line that is
not a report, or a predicate that cannot be used, is counted and never guessed; nothing is changed unless a candidate is
applied.

Modules in reading order:

- ``options``: the thresholds. ``findings``: findings, reasons and advice.
- ``reports``: scan reports of several writers, as one DataFrame or as the predicates of one table with their runs.
- ``job``: the audit on Spark.
- ``layout``: a layout simulated on sample points.
- ``candidates``: a layout change with what it saves, and ranks; ``ideas``: the layouts to try.
- ``advisor``: estimates and applies candidates.

Imported by ``explorer`` and ``cli``.
"""
