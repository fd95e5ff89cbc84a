"""The document of one file and a predicate: bounds, partition, deletes, row groups, and the result of each.

The predicate is evaluated as in planning, separately on partition values and on column bounds, so that the page shows
which of them prunes the file. Fail-safe: a file that cannot be opened has no row groups but a reason.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pyiceberg.types import DoubleType, FloatType, PrimitiveType

from floeplan.errors import FloeplanError
from floeplan.explorer.view import TableView
from floeplan.formats.stored import PARQUET
from floeplan.metadata.delete_index import DeleteKind
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.metadata.manifests.stats import file_stats
from floeplan.parquet.footer.footer import read_footer
from floeplan.parquet.footer.statistics import row_group_stats
from floeplan.parquet.source import open_source
from floeplan.partition.transforms import from_physical
from floeplan.predicate.build import columns as predicate_columns
from floeplan.predicate.build import leaves
from floeplan.predicate.compile import CompileResult, compile_predicate
from floeplan.predicate.evaluate import physical
from floeplan.predicate.ir import TRUE, Between, Cmp, CmpOp, Column, IrExpr
from floeplan.predicate.literals import Value, value_json
from floeplan.predicate.names import leaf_columns
from floeplan.predicate.stats import Bound, ColumnStats, StatsTable, Tri, TriState
from floeplan.scan.footers import file_pruner
from floeplan.scan.model import ScanOptions
from floeplan.scan.why import why_entry
from floeplan.snapshot.effects import Evaluation, LeafAnswers, Predicate, evaluate_conjuncts
from floeplan.snapshot.passes import match

_ROOM = 0.2
MOST_ROW_GROUPS = 500
MOST_DELETES = 50
_ANSWERS = {TriState.FALSE: "no row", TriState.UNKNOWN: "some rows", TriState.TRUE: "every row"}


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
    # Equality deletes apply by the values of their columns, hence the statistics of those.
    delete_rows = match(entry, view.deletes, view.union, view.sources).of(0)[:MOST_DELETES]
    deletes = view.deletes.entries.take(delete_rows).table.to_pylist()
    kinds = view.deletes.kinds[delete_rows].tolist()
    answers = LeafAnswers(predicate, entry)
    evaluation = evaluate_conjuncts(predicate.expr, answers.bounds.nonempty, answers.by_both)
    return {
        "file": view.file_facts(np.array([row]))[0],
        "where": where or "",
        "answer": _answers(evaluation.tri)[0],
        "why": why_entry(view.target, view.reader, compiled, entry).to_dict(),
        "conjuncts": _conjuncts(predicate, answers, evaluation),
        "columns": _columns(entry, stats, frozenset(predicate.columns)),
        "deletes": [
            {
                "path": file["file_path"],
                "kind": DeleteKind(kind).name.lower().replace("_", "-"),
                "record_count": file["record_count"],
                "sequence_number": file["sequence_number"],
            }
            for file, kind in zip(deletes, kinds, strict=True)
        ],
        "row_groups": _row_groups(view, entry, compiled, list(predicate.columns.values())),
    }


def _answers(tri: Tri) -> list[str]:
    return [_ANSWERS[TriState(state)] for state in tri.states().ravel().tolist()]


def _conjuncts(predicate: Predicate, answers: LeafAnswers, evaluation: Evaluation) -> list[dict[str, Any]]:
    """The result of each conjunct from partition values, from column bounds, and from both."""
    bounds = answers.bounds
    by_partition = evaluate_conjuncts(predicate.expr, bounds.nonempty, answers.by_partition)
    by_bounds = evaluate_conjuncts(predicate.expr, bounds.nonempty, answers.by_bounds)
    return [
        {
            "predicate": str(conjunct),
            "columns": sorted(
                {".".join(c.path) for leaf in leaves(conjunct) for c in predicate_columns(leaf).values()}
            ),
            "answer": both,
            "partition": partition,
            "bounds": bound,
            "range": drawn_range(conjunct, bounds),
        }
        for conjunct, both, partition, bound in zip(
            evaluation.conjuncts, *map(_answers, (evaluation.parts, by_partition.parts, by_bounds.parts)), strict=True
        )
    ]


def _columns(entry: EntriesTable, columns: dict[int, Column], used: frozenset[int]) -> list[dict[str, Any]]:
    """Bounds and counts of all columns, those of the predicate first."""
    stats = file_stats(entry, columns.values()).columns
    found = []
    for field_id, column in sorted(columns.items(), key=lambda item: (item[0] not in used, item[0])):
        nulls, nans = (int(entry.ints(f"{name}.{field_id}")[0]) for name in ("null_count", "nan_count"))
        found.append(
            {
                "name": ".".join(column.path),
                "type": str(column.type),
                "in_predicate": field_id in used,
                "nulls": None if nulls < 0 else nulls,
                "nans": None if nans < 0 else nans,
            }
            | _bounds_at(stats.get(field_id), column.type, 0)
        )
    return found


def _bounds_at(stats: ColumnStats | None, type_: PrimitiveType, row: int) -> dict[str, Any]:
    """Lower and upper bound of one row group or file as JSON values."""
    found = {}
    for name in ("lower", "upper"):
        bound = None if stats is None else _bound_at(getattr(stats, name), row)
        found[name] = None if bound is None else value_json(type_, from_physical(type_, bound))
    return found


def _row_groups(view: TableView, entry: EntriesTable, compiled: CompileResult, columns: list[Column]) -> dict[str, Any]:
    """Row groups, evaluated as in the third pass of planning."""
    if (format_ := entry.array("file_format")[0].as_py()) != PARQUET:
        return {"unread": f"row groups of {format_} files are not shown", "groups": []}
    floats = [column for column in columns if isinstance(column.type, FloatType | DoubleType)]
    known = file_stats(entry, floats).columns
    without_nan = frozenset(field_id for field_id, stats in known.items() if not stats.may_nan[0])
    try:
        source = open_source(str(entry.path[0].as_py()), view.table.io)
        footer = read_footer(source)
        if not footer.has_field_ids:
            return {"unread": "its columns carry no field ids", "groups": []}
        options = ScanOptions(page_index=True, bloom_filter=True)
        fields = view.union.spec(int(entry.spec_id[0])).fields
        pruner = file_pruner(compiled, view.target.schema, fields, options)
        result = pruner.examine(source, footer, without_nan=without_nan).result()
    except (FloeplanError, OSError) as error:
        return {"unread": str(error), "groups": []}
    stats = row_group_stats(footer, columns)
    first, rows = footer.first_rows.tolist(), footer.row_group_rows.tolist()
    groups = [
        {
            "rows": rows[at],
            "first_row": first[at],
            "answer": _ANSWERS[TriState(int(result.row_group_states[at]))],
            "kept": at in result.row_groups,
            "bounds": {
                ".".join(column.path): _bounds_at(stats.columns.get(column.field_id), column.type, at)
                for column in columns
            },
        }
        for at in range(min(footer.num_row_groups, MOST_ROW_GROUPS))
    ]
    return {
        "unread": None,
        "total": footer.num_row_groups,
        "groups": groups,
        "rows_selected": result.file_selection.row_count,
        "selection": result.file_selection.to_pairs()[:MOST_ROW_GROUPS],
        "pages_total": result.pages_total,
        "pages_kept": result.pages_kept,
        "notes": list(result.notes),
    }


def drawn_range(conjunct: IrExpr, stats: StatsTable) -> dict[str, Any] | None:
    """The bounds of the file and the range of a condition, on a scale from 0 to 1.

    ``None`` unless the condition is a comparison or BETWEEN on numbers or times. An open range reaches the edge.
    """
    low: Value | None = None
    high: Value | None = None
    match conjunct:
        case Between(column, low, high):
            pass
        case Cmp(column, CmpOp.EQ | CmpOp.NULL_SAFE_EQ, value):
            low = high = value
        case Cmp(column, CmpOp.GT | CmpOp.GE, low):
            pass
        case Cmp(column, CmpOp.LT | CmpOp.LE, high):
            pass
        case _:
            return None
    known = stats.columns.get(column.field_id)
    if known is None:
        return None
    lower, upper = (_finite(_bound_at(bound, 0)) for bound in (known.lower, known.upper))
    ends = [_finite(physical(column.type, end)) for end in (low, high) if end is not None]
    numbers = [number for number in (lower, upper, *ends) if number is not None]
    if len(numbers) < 2 + len(ends):
        return None
    room = (max(numbers) - min(numbers)) * _ROOM or 1.0
    start, width = min(numbers) - room, max(numbers) - min(numbers) + 2 * room
    offsets = [round((number - start) / width, 4) for number in numbers]
    wanted = [offsets[2] if low is not None else 0.0, offsets[-1] if high is not None else 1.0]
    return {"file": offsets[:2], "wanted": wanted}


def _finite(value: Any) -> float | None:
    """The value as a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(float(value)):
        return None
    return float(value)


def _bound_at(bound: Bound | None, row: int) -> Any:
    """One bound in its physical form; ``None`` if it is unknown."""
    if bound is None or not bound.valid[row]:
        return None
    raw = bound.values[row]
    return raw.item() if isinstance(raw, np.generic) else raw.as_py()
