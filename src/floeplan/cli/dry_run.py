"""The dry run of ``delete``, ``update`` and ``merge``: the files to drop by metadata, and the files to read."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyiceberg.table import Table
from rich.console import Group, RenderableType
from rich.text import Text

from floeplan.cli import common
from floeplan.dml.assign import compile_assignments
from floeplan.dml.commit import ChangeBuilder
from floeplan.dml.delete_update import drop_files, plan_rows, refuse_moves
from floeplan.dml.target import Command, resolve
from floeplan.errors import UnsupportedError
from floeplan.predicate.names import Names
from floeplan.predicate.rows.arrow_columns import typed_columns_of
from floeplan.predicate.stats import TriState
from floeplan.scan.plan import ScanPlan
from floeplan.scan.projection import arrow_schema
from floeplan.text import counted, human_bytes


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a change would do according to metadata.

    Attributes:
        operation: The command.
        mode: ``copy-on-write`` or ``merge-on-read``.
        files_total: Data files of the branch.
        files_by_metadata: Files that would be dropped without being read.
        rows_by_metadata: Rows in those files.
        files_to_read: Files that may contain matching rows.
        rows_to_read: Rows in those files.
        bytes_to_read: Bytes of those files.
    """

    operation: str
    mode: str
    files_total: int | None
    files_by_metadata: int
    rows_by_metadata: int
    files_to_read: int
    rows_to_read: int
    bytes_to_read: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {"dry_run": True} | {name: getattr(self, name) for name in self.__slots__}


def plan_change(
    table: Table, where: str, assigned: dict[str, object] | None, case_sensitive: bool, options: dict[str, Any]
) -> DryRun:
    """Make the same checks and the same plan as a delete, or an update if columns are assigned.

    Rows of files that must be read are reported as such, not estimated.
    """
    target = resolve(table, Command.DELETE if assigned is None else Command.UPDATE, **options)
    if assigned is not None:
        assignments = compile_assignments(assigned, target.schema, Names(target.schema, case_sensitive))
        no_rows = arrow_schema(target.schema).empty_table()
        with suppress(UnsupportedError):  # what Arrow cannot evaluate is Spark's to check
            assignments.update(no_rows, typed_columns_of(no_rows, target.schema), no_rows.schema)
    plan = plan_rows(target, where, None, case_sensitive)
    # A delete drops a file of which all rows match. An update reads it, because its rows get new values.
    changes, whole = ChangeBuilder(), (plan.files.states == TriState.TRUE) & (assigned is None)
    refuse_moves(target, plan.files, ~whole, updates=assigned is not None)
    proven = drop_files(plan.files, whole, changes)
    entries = plan.files.entries
    return DryRun(
        operation=target.command.value,
        mode=target.mode.value,
        files_total=plan.summary.files_total,
        files_by_metadata=int(proven.sum()),
        rows_by_metadata=changes.rows_deleted,
        files_to_read=int((~proven).sum()),
        rows_to_read=int(entries.record_count[~proven].sum()),
        bytes_to_read=int(entries.ints("file_size_in_bytes")[~proven].sum()),
    )


def files_to_read(table: Table, plan: ScanPlan, options: dict[str, Any]) -> DryRun:
    """The dry run of a merge, which reads every planned file."""
    target = resolve(table, Command.MERGE, **options)
    entries = plan.files.entries
    return DryRun(
        operation=target.command.value,
        mode=target.mode.value,
        files_total=plan.summary.files_total,
        files_by_metadata=0,
        rows_by_metadata=0,
        files_to_read=len(plan.files),
        rows_to_read=int(entries.record_count.sum()),
        bytes_to_read=int(entries.ints("file_size_in_bytes").sum()),
    )


def draw(result: DryRun) -> RenderableType:
    """Render a dry run."""
    drawn = common.key_value_table()
    dropped = f"{counted(result.files_by_metadata, 'file')}, {counted(result.rows_by_metadata, 'row')}"
    drawn.add_row("would drop", f"{dropped}, by metadata alone")
    read = f"{counted(result.files_to_read, 'file')}, {counted(result.rows_to_read, 'row')}"
    drawn.add_row("would read", f"{read}, {human_bytes(result.bytes_to_read)}")
    drawn.add_row("table", "unknown" if result.files_total is None else counted(result.files_total, "file"))
    return Group(Text(f"{result.operation} ({result.mode}), dry run: nothing was changed", style="bold"), drawn)
