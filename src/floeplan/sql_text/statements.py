"""Parsed statements, before any name is resolved: table names, clauses in their order, expressions as text.

An expression keeps its source text except for its qualifiers: ``t.v + 1`` of ``UPDATE db.t AS t`` is ``v + 1``. The
expressions of a MERGE are over two tables, so the aliases are replaced by ``target.`` and ``source.``; a column without
a qualifier stays without one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from floeplan.dml.assign import SubqueryCondition
from floeplan.errors import BadInputError
from floeplan.partition.evolution import SpecChange

TARGET, SOURCE = "target", "source"
"""The qualifiers of columns in the expressions of a MERGE."""

ColumnPath: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableName:
    """A table by the parts of its name, with or without a catalog, and the branch to change."""

    parts: tuple[str, ...]
    branch: str | None = None

    def __str__(self) -> str:
        return ".".join(self.parts)


def target_name(parts: tuple[str, ...]) -> TableName:
    """The table a statement changes: ``[catalog.]namespace.name[.branch_b]``."""
    last = parts[-1]
    if len(parts) > 2 and last.startswith("branch_"):
        return TableName(parts[:-1], last.removeprefix("branch_"))
    if len(parts) > 2 and last.startswith(("snapshot_id_", "at_timestamp_", "tag_")):
        raise BadInputError(
            f"{'.'.join(parts)} is a snapshot or tag and cannot be changed; name the table or a branch",
            context={"table": ".".join(parts)},
        )
    if len(parts) < 2:
        raise BadInputError(f"{parts[0]!r} does not name a table; write namespace.name", context={"table": parts[0]})
    return TableName(parts)


@dataclass(frozen=True, slots=True)
class Query:
    """The text of a query: SELECT, VALUES, WITH …, TABLE …."""

    text: str


@dataclass(frozen=True, slots=True)
class Relation:
    """A table, a view, or files (``parquet.`folder```), by the parts of its name."""

    parts: tuple[str, ...]


Source: TypeAlias = Query | Relation


@dataclass(frozen=True, slots=True)
class PartitionValue:
    """One item of a PARTITION clause; without a value the partition is dynamic."""

    column: str
    value: str | None = None


@dataclass(frozen=True, slots=True)
class Insert:
    """INSERT INTO, INSERT OVERWRITE, and INSERT INTO … REPLACE WHERE (``replace_where``)."""

    table: TableName
    query: Query
    overwrite: bool = False
    columns: tuple[str, ...] | None = None
    by_name: bool = False
    partition: tuple[PartitionValue, ...] = ()
    replace_where: str | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """DELETE FROM; without a condition, of every row."""

    table: TableName
    where: str | SubqueryCondition | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """``column = expression``."""

    column: ColumnPath
    value: str


@dataclass(frozen=True, slots=True)
class Update:
    """UPDATE; without a condition, of every row."""

    table: TableName
    assignments: tuple[Assignment, ...]
    where: str | SubqueryCondition | None = None


@dataclass(frozen=True, slots=True)
class DeleteRow:
    """THEN DELETE."""


@dataclass(frozen=True, slots=True)
class UpdateRow:
    """THEN UPDATE SET …; ``None`` stands for ``*``: every column from the source column of its name."""

    assignments: tuple[Assignment, ...] | None


@dataclass(frozen=True, slots=True)
class InsertRow:
    """THEN INSERT (columns) VALUES (…); ``None`` stands for ``*``."""

    assignments: tuple[Assignment, ...] | None


@dataclass(frozen=True, slots=True)
class Clause:
    """One WHEN clause of a MERGE: its action, and the condition after AND."""

    action: DeleteRow | UpdateRow | InsertRow
    condition: str | None = None


@dataclass(frozen=True, slots=True)
class Merge:
    """MERGE INTO; of each kind the first clause whose condition holds applies.

    ``source_columns`` renames the columns of the source.
    """

    table: TableName
    source: Source
    on: str
    matched: tuple[Clause, ...] = ()
    not_matched: tuple[Clause, ...] = ()
    not_matched_by_source: tuple[Clause, ...] = ()
    source_columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class AlterPartitioning:
    """ALTER TABLE … ADD, DROP or REPLACE PARTITION FIELD."""

    table: TableName
    changes: tuple[SpecChange, ...]


Statement: TypeAlias = Insert | Delete | Update | Merge | AlterPartitioning
