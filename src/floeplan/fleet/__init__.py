"""Maintaining a fleet of tables: ``floeplan maintain``, for schedulers.

::

    policy ──► look at every table ──► rank by gain per byte ──► lease ─► plan again ─► work ──► report, table of runs
                 doctor, planners        corrected by records      within the budget

Rule: this package decides what is done, in which order, and when to stop; it does nothing to a table itself. Every
piece of work is predicted and done by the planner of its command. Fail-safe: two runs never work on one table at once
(``lease``), a run yields to the maintenance of other engines, and without a policy nothing is deleted that the owner of
a table has not enabled.

Modules in reading order:

- ``policy``: settings by pattern, windows and budgets. ``policy_file``: reading them from TOML.
- ``work``: the kinds of work and how their gains compare. ``planners``: predicting and doing each of them.
- ``lease``: a lease on a table, and detecting other engines.
- ``report``: results, and metrics for Prometheus. ``records``: the table of runs, and what is learned from it.
- ``look``: one table. ``ranking``: what comes next, within the budget. ``run``: ``fp.maintain``.

Imported by ``explorer`` and ``cli``.
"""
