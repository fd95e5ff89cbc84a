"""Parsed statements, before any name is resolved: table names, clauses in their order, expressions and queries as text.

An expression keeps its source text except for its qualifiers: ``t.v + 1`` of ``UPDATE db.t AS t`` is ``v + 1``. The
expressions of a MERGE are over two tables, so the aliases are replaced by ``target.`` and ``source.``; a column without
a qualifier stays without one. Assignments map the quoted name of a column to its expression, as ``dml`` takes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from floeplan.dml.assign import SubqueryCondition
from floeplan.dml.merge.compile import WhenText
from floeplan.errors import BadInputError
from floeplan.partition.evolution import SpecChange

TARGET, SOURCE = "target", "source"
"""The qualifiers of columns in the expressions of a MERGE."""


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
class Insert:
    """INSERT INTO, INSERT OVERWRITE, and INSERT INTO … REPLACE WHERE (``replace_where``).

    ``partition`` has the columns of a PARTITION clause with their values, ``None`` for dynamic ones.
    """

    table: TableName
    query: str
    overwrite: bool = False
    columns: tuple[str, ...] | None = None
    by_name: bool = False
    partition: tuple[tuple[str, str | None], ...] = ()
    replace_where: str | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """DELETE FROM; without a condition, of every row."""

    table: TableName
    where: str | SubqueryCondition | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """UPDATE; without a condition, of every row."""

    table: TableName
    assignments: Mapping[str, object]
    where: str | SubqueryCondition | None = None


@dataclass(frozen=True, slots=True)
class Merge:
    """MERGE INTO; of each kind the first clause whose condition holds applies.

    ``source`` is the text of a query, or the name of a table, a view, or files (``parquet.`folder```);
    ``source_columns`` renames its columns.
    """

    table: TableName
    source: str | TableName
    on: str
    matched: tuple[WhenText, ...] = ()
    not_matched: tuple[WhenText, ...] = ()
    not_matched_by_source: tuple[WhenText, ...] = ()
    source_columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class AlterPartitioning:
    """ALTER TABLE … ADD, DROP or REPLACE PARTITION FIELD."""

    table: TableName
    changes: tuple[SpecChange, ...]


Statement: TypeAlias = Insert | Delete | Update | Merge | AlterPartitioning
