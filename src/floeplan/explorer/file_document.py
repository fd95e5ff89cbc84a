"""The document of one file and a predicate: bounds, partition, deletes, row groups, and the result of each.

The predicate is evaluated as in planning, separately on partition values and on column bounds, so that the page shows
which of them prunes the file. Fail-safe: a file that cannot be opened has no row groups but a reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from pyiceberg.types import DoubleType, FloatType, PrimitiveType

from floeplan.errors import FloeplanError
from floeplan.explorer.view import TableView
from floeplan.metadata.delete_index import DeleteKind
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.metadata.manifests.stats import file_stats, partition_stats
from floeplan.parquet.footer.footer import ParquetFooter, read_footer
from floeplan.parquet.footer.statistics import row_group_stats
from floeplan.parquet.prune.result import PruneResult
from floeplan.parquet.source import open_source
from floeplan.partition.transforms import from_physical
from floeplan.partition.union import partition_answer
from floeplan.predicate.build import columns as predicate_columns
from floeplan.predicate.build import leaves
from floeplan.predicate.compile import CompileResult, compile_predicate
from floeplan.predicate.evaluate import answer_leaf, physical
from floeplan.predicate.ir import TRUE, Between, Cmp, CmpOp, Column, IrExpr
from floeplan.predicate.literals import Value, value_json
from floeplan.predicate.names import leaf_columns
from floeplan.predicate.stats import Bound, ColumnStats, StatsTable, Tri, TriState
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import file_pruner
from floeplan.snapshot.passes import Evaluation, Predicate, evaluate_conjuncts, evaluate_entries, match

_ROOM = 0.2
_UPWARDS = (CmpOp.GT, CmpOp.GE)
_DOWNWARDS = (CmpOp.LT, CmpOp.LE)


def drawn_range(conjunct: IrExpr, stats: StatsTable) -> dict[str, Any] | None:
    """The bounds of the file and the range of a condition, on a scale from 0 to 1.

    ``None`` unless the condition is a comparison or BETWEEN on numbers or times. An open range reaches the edge.
    """
    found = _range(conjunct)
    if found is None:
        return None
    column, low, high = found
    known = stats.columns.get(column.field_id)
    lower, upper = (None, None) if known is None else (_number(known.lower), _number(known.upper))
    ends = [_finite(physical(column.type, end)) for end in (low, high) if end is not None]
    numbers = [number for number in (lower, upper, *ends) if number is not None]
    if lower is None or upper is None or None in ends:
        return None
    room = (max(numbers) - min(numbers)) * _ROOM or 1.0
    start, width = min(numbers) - room, max(numbers) - min(numbers) + 2 * room
    offsets = [round((number - start) / width, 4) for number in numbers]
    range_low = offsets[2] if low is not None else 0.0
    range_high = offsets[-1] if high is not None else 1.0
    return {"file": offsets[:2], "wanted": [range_low, range_high]}


def _range(conjunct: IrExpr) -> tuple[Column, Value | None, Value | None] | None:
    """The column of a condition and its lower and upper end."""
    match conjunct:
        case Between(column, low, high):
            return column, low, high
        case Cmp(column, CmpOp.EQ | CmpOp.NULL_SAFE_EQ, value):
            return column, value, value
        case Cmp(column, op, value) if op in _UPWARDS:
            return column, value, None
        case Cmp(column, op, value) if op in _DOWNWARDS:
            return column, None, value
    return None


def _number(bound: Bound | None) -> float | None:
    if bound is None or not bound.valid[0] or not isinstance(bound.values, np.ndarray):
        return None
    return _finite(bound.values[0].item())


def _finite(value: Value) -> float | None:
    """The value as a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = float(value)
    return number if np.isfinite(number) else None


MOST_ROW_GROUPS = 500
MOST_DELETES = 50
_ANSWERS = {TriState.FALSE: "no row", TriState.UNKNOWN: "some rows", TriState.TRUE: "every row"}


@dataclass(frozen=True, slots=True)
class _FilePredicate:
    """One file and the predicate to evaluate on it."""

    view: TableView
    entry: EntriesTable
    compiled: CompileResult
    predicate: Predicate

    @property
    def columns(self) -> list[Column]:
        return list(self.predicate.columns.values())


def file_document(view: TableView, path: str, where: str | None) -> dict[str, Any]:
    """The JSON document of a file.

    Raises:
        UnknownFileError: The snapshot has no such file.
        BadInputError: An invalid predicate.
    """
    row = view.row_of_path(path)
    compiled = compile_predicate(where or TRUE, view.target.schema)
    predicate = Predicate(compiled.predicate, predicate_columns(compiled.predicate), view.union)
    stats = leaf_columns(view.target.schema) | dict(predicate.columns)
    entry = view.with_statistics(row, frozenset(stats) | view.deletes.key_columns)
    asked = _FilePredicate(view, entry, compiled, predicate)
    evaluation = evaluate_entries(predicate, entry)
    return {
        "file": view.file_facts(np.array([row]))[0],
        "where": where or "",
        "answer": _answer(evaluation.tri),
        "conjuncts": _conjuncts(asked, evaluation),
        "columns": _bounds(entry, stats, frozenset(predicate.columns)),
        "deletes": _deletes(view, entry),
        "row_groups": _row_groups(asked),
    }


def _answer(tri: Tri) -> str:
    return _ANSWERS[TriState(int(tri.states()[0]))]


def _conjuncts(asked: _FilePredicate, evaluation: Evaluation) -> list[dict[str, Any]]:
    """The result of each conjunct from partition values, from column bounds, and from both."""
    predicate, entry = asked.predicate, asked.entry
    bounds = file_stats(entry, predicate.columns.values())
    partitions = partition_stats(entry, predicate.fields)
    fields = [field.bound for field in predicate.fields]
    by_partition = evaluate_conjuncts(
        predicate.expr, bounds.nonempty, lambda leaf: partition_answer(leaf, fields, partitions)
    )
    by_bounds = evaluate_conjuncts(predicate.expr, bounds.nonempty, lambda leaf: answer_leaf(leaf, bounds))
    return [
        {
            "predicate": str(conjunct),
            "columns": sorted(
                {".".join(c.path) for leaf in leaves(conjunct) for c in predicate_columns(leaf).values()}
            ),
            "answer": _answer(both),
            "partition": _answer(partition),
            "bounds": _answer(bound),
            "range": drawn_range(conjunct, bounds),
        }
        for conjunct, both, partition, bound in zip(
            evaluation.conjuncts, evaluation.parts, by_partition.parts, by_bounds.parts, strict=True
        )
    ]


def _bounds(entry: EntriesTable, columns: dict[int, Column], asked: frozenset[int]) -> list[dict[str, Any]]:
    """Bounds and counts of all columns, those of the predicate first."""
    stats = file_stats(entry, columns.values()).columns
    found = []
    for field_id, column in sorted(columns.items(), key=lambda item: (item[0] not in asked, item[0])):
        known = stats.get(field_id)
        nulls, nans = (int(entry.ints(f"{name}.{field_id}")[0]) for name in ("null_count", "nan_count"))
        found.append(
            {
                "name": ".".join(column.path),
                "type": str(column.type),
                "asked": field_id in asked,
                "nulls": None if nulls < 0 else nulls,
                "nans": None if nans < 0 else nans,
            }
            | bounds_at(known, column.type, 0)
        )
    return found


def bounds_at(stats: ColumnStats | None, type_: PrimitiveType, row: int) -> dict[str, Any]:
    """Lower and upper bound of one row group or file as JSON values."""
    if stats is None:
        return {"lower": None, "upper": None}
    return {"lower": _shown(stats.lower, type_, row), "upper": _shown(stats.upper, type_, row)}


def _shown(bound: Bound | None, type_: PrimitiveType, row: int) -> Any:
    if bound is None or not bound.valid[row]:
        return None
    raw = bound.values[row]
    return value_json(type_, from_physical(type_, raw.item() if isinstance(raw, np.generic) else raw.as_py()))


def _deletes(view: TableView, entry: EntriesTable) -> list[dict[str, Any]]:
    rows = match(entry, view.deletes, view.union, view.sources).of(0)[:MOST_DELETES]
    picked = view.deletes.entries.take(rows)
    kinds = view.deletes.kinds[rows].tolist()
    return [
        {
            "path": file["file_path"],
            "kind": DeleteKind(kind).name.lower().replace("_", "-"),
            "record_count": file["record_count"],
            "sequence_number": file["sequence_number"],
        }
        for file, kind in zip(picked.table.to_pylist(), kinds, strict=True)
    ]


def _row_groups(asked: _FilePredicate) -> dict[str, Any]:
    """Row groups, evaluated as in the third pass of planning."""
    view, path = asked.view, str(asked.entry.path[0].as_py())
    if asked.entry.array("file_format")[0].as_py() != "PARQUET":
        return {"unread": "it is not a Parquet file", "groups": []}
    try:
        source = open_source(path, view.table.io)
        footer = read_footer(source)
        options = ScanOptions(page_index=True, bloom_filter=True)
        if not footer.has_field_ids:
            return {"unread": "its columns carry no field ids", "groups": []}
        fields = view.union.spec(int(asked.entry.spec_id[0])).fields
        pruner = file_pruner(asked.compiled, view.target.schema, fields, options)
        result = pruner.examine(source, footer, without_nan=_without_nan(asked)).result()
    except (FloeplanError, OSError) as error:
        return {"unread": str(error), "groups": []}
    return {"unread": None, "total": footer.num_row_groups} | _evaluated(asked, footer, result)


def _without_nan(asked: _FilePredicate) -> frozenset[int]:
    floats = [column for column in asked.columns if isinstance(column.type, FloatType | DoubleType)]
    known = file_stats(asked.entry, floats).columns
    return frozenset(field_id for field_id, stats in known.items() if not stats.may_nan[0])


def _evaluated(asked: _FilePredicate, footer: ParquetFooter, result: PruneResult) -> dict[str, Any]:
    stats = row_group_stats(footer, asked.columns)
    selection = result.file_selection
    first, rows = footer.first_rows.tolist(), footer.row_group_rows.tolist()
    groups = [
        {
            "rows": rows[at],
            "first_row": first[at],
            "answer": _ANSWERS[TriState(int(result.row_group_states[at]))],
            "kept": at in result.row_groups,
            "bounds": {
                ".".join(column.path): bounds_at(stats.columns.get(column.field_id), column.type, at)
                for column in asked.columns
            },
        }
        for at in range(min(footer.num_row_groups, MOST_ROW_GROUPS))
    ]
    return {
        "groups": groups,
        "rows_selected": selection.row_count,
        "selection": selection.to_pairs()[:MOST_ROW_GROUPS],
        "pages_total": result.pages_total,
        "pages_kept": result.pages_kept,
        "notes": list(result.notes),
    }
