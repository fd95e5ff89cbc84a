"""What a delete or update would do, from the same plan that it would be made with.

Fail-safe: options, columns and types are checked as they would be, so a dry run refuses what the change would refuse;
rows that must be read are counted as such, and never guessed at.
"""

from __future__ import annotations

import numpy as np
from pyiceberg.table import Table

from floeplan.cli.changes import DryRun
from floeplan.dml.assign import compile_assignments
from floeplan.dml.outcome import Outcome
from floeplan.dml.planning import drop_proven, plan_rows
from floeplan.dml.subqueries import planned
from floeplan.dml.target import Command, DmlTarget, resolve
from floeplan.predicate.names import Names
from floeplan.predicate.tristate import Mask
from floeplan.scan.scan_plan import ScanPlan
from floeplan.sql_text.run import StatementOptions, assigned_texts
from floeplan.sql_text.statements import Update


def dry_delete(table: Table, where: str, options: StatementOptions) -> DryRun:
    """What deleting would do."""
    target = _target(table, Command.DELETE, options)
    plan = plan_rows(target, where, None, options.case_sensitive)
    outcome = Outcome()
    proven = drop_proven(plan.files, outcome)
    return _dry_run(target, plan, proven, outcome.rows_deleted)


def dry_update(statement: Update, table: Table, options: StatementOptions) -> DryRun:
    """What updating would do; a file of which every row changes must be read all the same."""
    target = _target(table, Command.UPDATE, options)
    compile_assignments(
        assigned_texts(statement.assignments), target.schema, Names(target.schema, options.case_sensitive)
    )
    plan = plan_rows(
        target, None if statement.where is None else planned(statement.where), None, options.case_sensitive
    )
    return _dry_run(target, plan, np.zeros(len(plan.files), dtype=np.bool_), 0)


def _target(table: Table, command: Command, options: StatementOptions) -> DmlTarget:
    return resolve(table, command, branch=options.branch, mode=options.mode, isolation=options.isolation)


def _dry_run(target: DmlTarget, plan: ScanPlan, proven: Mask, rows: int) -> DryRun:
    entries = plan.files.entries
    return DryRun(
        operation=target.command.value,
        mode=target.mode.value,
        files_total=plan.summary.files_total,
        files_by_metadata=int(proven.sum()),
        rows_by_metadata=rows,
        files_to_read=int((~proven).sum()),
        rows_to_read=int(entries.record_count[~proven].sum()),
        bytes_to_read=int(entries.ints("file_size_in_bytes")[~proven].sum()),
    )
