"""What a statement says, before anything is looked up: names, expressions as text, clauses in their order.

Expressions keep the text they were written with, except that the name of the target is taken away: ``t.v + 1`` of
``UPDATE db.t AS t`` is ``v + 1``. In MERGE two tables are there, so columns are qualified with ``target.`` and
``source.`` whatever the aliases were; a column without a qualifier stays without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from floeplan.dml.statement import SubqueryCondition
from floeplan.partition.evolution import SpecChange

TARGET, SOURCE = "target", "source"
"""The qualifiers of columns in the expressions of a MERGE."""

ColumnPath: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableName:
    """A table by its parts, catalog first if it is there, and the branch that its name may end with."""

    parts: tuple[str, ...]
    branch: str | None = None

    def __str__(self) -> str:
        return ".".join(self.parts)


@dataclass(frozen=True, slots=True)
class Query:
    """Text that yields rows: SELECT, VALUES, WITH …, TABLE …."""

    text: str


@dataclass(frozen=True, slots=True)
class Relation:
    """A table, a view, or files (``parquet.`folder```), by its parts as written."""

    parts: tuple[str, ...]


Source: TypeAlias = Query | Relation


@dataclass(frozen=True, slots=True)
class PartitionValue:
    """One item of a PARTITION clause; without a value the partition is taken from the rows."""

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
    """DELETE FROM; without a condition every row goes."""

    table: TableName
    where: str | SubqueryCondition | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """``column = expression``."""

    column: ColumnPath
    value: str


@dataclass(frozen=True, slots=True)
class Update:
    """UPDATE; without a condition every row is changed."""

    table: TableName
    assignments: tuple[Assignment, ...]
    where: str | SubqueryCondition | None = None


@dataclass(frozen=True, slots=True)
class DeleteRow:
    """THEN DELETE."""


@dataclass(frozen=True, slots=True)
class UpdateRow:
    """THEN UPDATE SET …; no assignments stand for ``*``: every column from the source column of its name."""

    assignments: tuple[Assignment, ...] | None


@dataclass(frozen=True, slots=True)
class InsertRow:
    """THEN INSERT (columns) VALUES (…); no assignments stand for ``*``."""

    assignments: tuple[Assignment, ...] | None


@dataclass(frozen=True, slots=True)
class Clause:
    """One WHEN of a MERGE: the condition beyond the match, and what is done with the row."""

    action: DeleteRow | UpdateRow | InsertRow
    condition: str | None = None


@dataclass(frozen=True, slots=True)
class Merge:
    """MERGE INTO; of each kind the first clause whose condition holds acts. ``source_columns`` renames the source's."""

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
