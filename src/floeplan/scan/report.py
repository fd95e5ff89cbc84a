"""Scan reports in Iceberg's JSON format, extended with the numbers of the passes.

The standard part is what Iceberg's own reporters write, so reports of several engines can be read together. The key
``floeplan`` holds the numbers per partition spec, the passes with the effect of every conjunct, and the warnings.

Reports are stored in a folder of JSON lines, or in an Iceberg table. The default is the folder ``$FLOEPLAN_REPORTS``,
or ``reports`` in ``$FLOEPLAN_HOME``, or else the user's state folder; ``FLOEPLAN_REPORTS=off`` disables reports. The
oldest reports of the default folder are removed. A report that cannot be stored is a warning of the plan.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache, reduce
from importlib.metadata import distribution, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from floeplan.metadata.delete_index import DeleteKind
from floeplan.metadata.manifests.stats import file_stats
from floeplan.parquet.prune.selection import distinct
from floeplan.predicate.build import columns as predicate_columns
from floeplan.predicate.build import map_leaves, negate, push_not, without_opaque
from floeplan.predicate.evaluate import physical
from floeplan.predicate.ir import (
    And,
    Between,
    BloomEq,
    BloomInList,
    Bounded,
    Cmp,
    CmpOp,
    FalseExpr,
    InList,
    IrExpr,
    IsNaN,
    IsNull,
    Not,
    NullExpr,
    Or,
    StartsWith,
    Transformed,
    TrueExpr,
)
from floeplan.predicate.literals import Value, value_json
from floeplan.predicate.stats import ColumnStats, StatsTable, TriState
from floeplan.scan.model import ReportStore
from floeplan.scan.planned_scan import PlannedScan, summarise_specs
from floeplan.text import document_text, excerpt

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

Json: TypeAlias = "bool | str | int | float | list[Json] | dict[str, Json]"

_OPERATIONS = {
    CmpOp.EQ: "eq",
    CmpOp.NE: "not-eq",
    CmpOp.LT: "lt",
    CmpOp.LE: "lt-eq",
    CmpOp.GT: "gt",
    CmpOp.GE: "gt-eq",
    CmpOp.NULL_SAFE_EQ: "eq",
}
LONGEST_PREDICATE = 4000
"""Characters of a predicate's text; ``filter`` holds the whole of it."""


@cache
def _version() -> str:
    """The installed version by the first lines of its metadata: parsing all of it, a long text, takes 3 ms."""
    header = (distribution("floeplan").read_text("METADATA") or "").partition("\n\n")[0]
    stated = next((line for line in header.splitlines() if line.startswith("Version: ")), "")
    return stated.removeprefix("Version: ") or version("floeplan")


Shares: TypeAlias = npt.NDArray[np.float64]

OFF = "off"
REPORT_FILE_BYTES = 16 * 1024 * 1024
MOST_REPORT_BYTES = 256 * 1024 * 1024
"""Size of a file of reports, and of all of them in the default folder; a report has a few KiB."""
REPORT_SCHEMA = pa.schema(
    [
        ("timestamp", pa.timestamp("us", "UTC")),
        ("table_name", pa.string()),
        ("snapshot_id", pa.int64()),
        ("predicate", pa.string()),
        ("report", pa.string()),
    ]
)
"""Columns of a table of reports; ``report`` is the whole JSON document."""

_POSITIONAL = (DeleteKind.POSITION_FILE, DeleteKind.POSITION_PARTITION)
_EQUALITY = (DeleteKind.EQUALITY_GLOBAL, DeleteKind.EQUALITY_PARTITION)


def scan_report(plan: PlannedScan) -> dict[str, Any]:
    """The report of one plan; unknown metrics are left out."""
    snapshot, predicate = plan.target.snapshot, plan.compiled.predicate
    texts: dict[int, tuple[IrExpr, str]] = {}

    def text(expr: IrExpr) -> str:
        """Every pass names the same conjuncts: each is formatted once."""
        if id(expr) not in texts:
            texts[id(expr)] = expr, str(expr)
        return texts[id(expr)][1]

    return {
        "report-type": "scan-report",
        "table-name": plan.target.name,
        "snapshot-id": -1 if snapshot is None else snapshot.snapshot_id,
        "filter": expression_json(predicate),
        "schema-id": plan.target.schema.schema_id,
        "projected-field-ids": [field.field_id for field in plan.schema.fields],
        "projected-field-names": [field.name for field in plan.schema.fields],
        "metrics": _metrics(plan),
        "metadata": {"engine-name": "floeplan", "engine-version": _version()},
        "floeplan": {
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "predicate": excerpt(str(predicate), LONGEST_PREDICATE),
            "default_spec_id": plan.target.metadata.default_spec_id,
            "layout_changed_ms": layout_changed_ms(plan.target.metadata, snapshot),
            "selectivity": _selectivity(plan),
            "summary": plan.summary.to_dict(),
            "specs": _specs(plan),
            "passes": [_shortened(step.to_dict(text)) for step in plan.passes],
            "warnings": [warning.to_dict() for warning in plan.warnings[:20]],
        },
    }


def _specs(plan: PlannedScan) -> list[dict[str, Any]]:
    """The numbers of each spec, and its partition fields on columns of the filter."""
    columns = predicate_columns(plan.compiled.predicate)
    found = []
    for summary in summarise_specs(plan.totals, plan.files, noted=False):
        document = summary.to_dict()
        del document["notes"]
        fields = plan.totals.union.spec(summary.spec_id).fields
        document["partition_fields"] = [str(field.column) for field in fields if field.source_id in columns]
        found.append(document | {"undecided": _undecided(plan, summary.spec_id)})
    return found


def _shortened(step: dict[str, Any]) -> dict[str, Any]:
    """A pass with the texts of its conjuncts cut: the filter has the values of a long list already."""
    for effect in step["effects"]:
        effect["predicate"] = excerpt(effect["predicate"], LONGEST_PREDICATE)
    return step


def layout_changed_ms(metadata: TableMetadata, snapshot: Snapshot | None) -> int | None:
    """When files or manifests were last rewritten, up to a snapshot; ``None`` if no such snapshot is left.

    Rewrites, spec upgrades and clustered manifests are ``replace`` snapshots, those of other engines too.
    """
    until = 0 if snapshot is None else snapshot.timestamp_ms
    times = (
        one.timestamp_ms
        for one in metadata.snapshots
        if one.summary is not None and one.summary.operation is Operation.REPLACE and one.timestamp_ms <= until
    )
    return max(times, default=None)


def _undecided(plan: PlannedScan, spec_id: int) -> int:
    """The files of a spec that are read because some conjunct was not decided."""
    effects = plan.passes[1].effects if len(plan.passes) > 1 else ()
    return max((effect.by_spec[spec_id].undecided for effect in effects if spec_id in effect.by_spec), default=0)


def _metrics(plan: PlannedScan) -> dict[str, Any]:
    summary, files = plan.summary, plan.files
    used = distinct(files.matches.deletes)
    kinds = files.delete_kinds
    by_kind = np.bincount(kinds[used], minlength=len(DeleteKind)).tolist()
    nanoseconds = round(summary.planning_ms * 1_000_000)
    counts = {
        "result-data-files": summary.files_kept,
        "result-delete-files": len(used),
        "total-data-manifests": summary.manifests_total,
        "total-delete-manifests": summary.delete_manifests_total,
        "scanned-data-manifests": summary.manifests_kept,
        "skipped-data-manifests": summary.manifests_total - summary.manifests_kept,
        "skipped-data-files": None if summary.files_total is None else summary.files_total - summary.files_kept,
        "skipped-delete-files": None if summary.deletes_total is None else summary.deletes_total - len(used),
        "scanned-delete-manifests": summary.delete_manifests_kept,
        "skipped-delete-manifests": summary.delete_manifests_total - summary.delete_manifests_kept,
        "indexed-delete-files": len(kinds),
        "equality-delete-files": sum(by_kind[kind] for kind in _EQUALITY),
        "positional-delete-files": sum(by_kind[kind] for kind in _POSITIONAL),
        "dvs": by_kind[DeleteKind.VECTOR],
    }
    sizes = {
        "total-file-size-in-bytes": int(files.entries.ints("file_size_in_bytes").sum()),
        "total-delete-file-size-in-bytes": int(files.deletes.ints("file_size_in_bytes")[used].sum()),
    }
    return {
        "total-planning-duration": {"count": 1, "time-unit": "nanoseconds", "total-duration": nanoseconds},
        **{name: {"unit": "count", "value": value} for name, value in counts.items() if value is not None},
        **{name: {"unit": "bytes", "value": value} for name, value in sizes.items()},
    }


class JsonLinesReportStore:
    """A folder with a file per day, or several when they are large; every report is one line, written in one piece.

    Args:
        directory: The folder; the first report creates it.
        most_bytes: Remove the oldest files when a new one is begun and all of them have more bytes.
        file_bytes: Begin another file when one has this many bytes.
    """

    def __init__(self, directory: Path, most_bytes: int | None = None, file_bytes: int = REPORT_FILE_BYTES) -> None:
        self.directory, self.most_bytes, self.file_bytes = directory, most_bytes, file_bytes
        self._last: tuple[str, Path] | None = None

    def append(self, report: Mapping[str, Any]) -> None:
        """Append a line."""
        line = (document_text(report, default=str) + "\n").encode("utf-8", "backslashreplace")
        day = f"scan-{datetime.now(UTC):%Y%m%d}"
        known, length = self._last, None
        if known is not None and known[0] == day:
            with suppress(FileNotFoundError):  # removed by somebody else
                length = _append(known[1], line, 0)
        if known is None or length is None:
            self.directory.mkdir(parents=True, exist_ok=True)
            known = day, self._file(day)
            length = _append(known[1], line, os.O_CREAT)
        # Listing the folder takes longer than the line: until the file is full, the next line goes there, too.
        self._last = known if length < self.file_bytes else None

    def _file(self, day: str) -> Path:
        """The file of today that is not full yet; before a new one is begun, old ones may be removed."""
        last = max((path.stem for path in self.directory.glob(f"{day}-*.jsonl")), default=None)
        if last is None:
            self._remove_oldest()
            return self.directory / f"{day}-00000.jsonl"
        path = self.directory / f"{last}.jsonl"
        with suppress(FileNotFoundError):
            if path.stat().st_size >= self.file_bytes:
                self._remove_oldest()
                number = last.rpartition("-")[2]
                return self.directory / f"{day}-{int(number) + 1 if number.isdecimal() else 0:05}.jsonl"
        return path

    def _remove_oldest(self) -> None:
        if self.most_bytes is None:
            return
        # Names sort by day and number. A file that another process removes at the same time is gone, too.
        total = 0
        for path in sorted(self.directory.glob("scan-*.jsonl"), reverse=True):
            with suppress(FileNotFoundError):
                total += path.stat().st_size
                if total > self.most_bytes:
                    path.unlink()


def _append(path: Path, line: bytes, flags: int) -> int:
    """Append to a file, and return its length; a file object would take as long as the line.

    One call per line, so that the lines of several processes do not mix.
    """
    file = os.open(path, os.O_WRONLY | os.O_APPEND | flags, 0o666)
    try:
        if os.write(file, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return os.fstat(file).st_size
    finally:
        os.close(file)


class TableReportStore:
    """An Iceberg table of reports; every report is an append."""

    def __init__(self, table: Table) -> None:
        self.table = table

    @classmethod
    def create(cls, catalog: Catalog, name: str) -> TableReportStore:
        """Open the table of reports; it is created if missing."""
        return cls(catalog.create_table_if_not_exists(name, REPORT_SCHEMA))

    def append(self, report: Mapping[str, Any]) -> None:
        """Append a row."""
        row = {
            "timestamp": datetime.now(UTC),
            "table_name": report["table-name"],
            "snapshot_id": report["snapshot-id"],
            "predicate": report["floeplan"]["predicate"],
            "report": document_text(report, default=str),
        }
        self.table.append(pa.Table.from_pylist([row], schema=REPORT_SCHEMA))


def default_store() -> ReportStore | None:
    """The folder of reports, unless reports are off."""
    if os.environ.get("FLOEPLAN_REPORTS", "").lower() == OFF:
        return None
    return JsonLinesReportStore(default_folder(), MOST_REPORT_BYTES)


def default_folder() -> Path:
    """``$FLOEPLAN_REPORTS``, ``reports`` in ``$FLOEPLAN_HOME``, or the user's state folder."""
    chosen, home = os.environ.get("FLOEPLAN_REPORTS", ""), os.environ.get("FLOEPLAN_HOME")
    if chosen and chosen.lower() != OFF:
        return Path(chosen)
    if home:
        return Path(home) / "reports"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "floeplan" / "reports"


def expression_json(expr: IrExpr) -> Json:
    """A predicate as Iceberg expression JSON, for scan reports and REST catalogs.

    Opaque parts have no such form and are left out (``without_opaque``), so the JSON matches at least the rows that the
    predicate matches.
    """
    return _json(without_opaque(map_leaves(expr, lambda leaf: leaf.piece if isinstance(leaf, Bounded) else leaf)))


def _json(expr: IrExpr) -> Json:
    match expr:
        case TrueExpr():
            return True
        case FalseExpr() | NullExpr():
            return False
        case And(operands) | Or(operands):
            name = "and" if isinstance(expr, And) else "or"
            return reduce(lambda left, right: {"type": name, "left": left, "right": right}, map(_json, operands))
        case Not(operand):
            return {"type": "not", "child": _json(operand)}
        case Cmp(column, op, value):
            return {"type": _OPERATIONS[op], "term": str(column), "value": value_json(column.type, value)}
        case BloomEq(column, value):
            return _json(Cmp(column, CmpOp.EQ, value))
        case BloomInList(column, values):
            return _json(InList(column, values))
        case InList(column, (), negated):
            return {"type": "not-null", "term": str(column)} if negated else False
        case InList(column, values, negated):
            listed: list[Json] = [value_json(column.type, value) for value in values]
            return {"type": "not-in" if negated else "in", "term": str(column), "values": listed}
        case StartsWith(column, prefix, negated):
            return {"type": "not-starts-with" if negated else "starts-with", "term": str(column), "value": prefix}
        case IsNull(column, negated):
            return {"type": "not-null" if negated else "is-null", "term": str(column)}
        case IsNaN(column, negated):
            return {"type": "not-nan" if negated else "is-nan", "term": str(column)}
        case Between():
            return _json(push_not(Not(negate(expr))))
        case Transformed(column, transform, leaf):
            written = _json(leaf)
            assert isinstance(written, dict)
            return written | {"term": {"type": "transform", "transform": transform, "term": str(column)}}
    raise AssertionError(expr)


def _selectivity(plan: PlannedScan) -> float | None:
    """The fraction of a table's rows that a predicate is expected to match; ``None`` when bounds cannot tell.

    Rows of files that are proven match. In the others values are assumed to be spread evenly between their bounds, and
    columns to be independent of each other. The estimate is for reports, never a reason to drop anything. What bounds
    do not estimate (strings, ``!=``, opaque parts, nulls) counts as matching every row; a predicate of only such
    conjuncts has no estimate.
    """
    rows_total, entries, predicate = plan.summary.rows_total, plan.files.entries, plan.compiled.predicate
    if not rows_total:
        return None
    proven = plan.files.states == TriState.TRUE
    if proven.all():
        matching = float(entries.record_count.sum())
    else:
        shares = _shares(push_not(predicate), file_stats(entries, predicate_columns(predicate).values()))
        if shares is None:
            return None
        matching = float((np.where(proven, 1.0, shares) * entries.record_count).sum())
    return min(1.0, matching / rows_total)


def _shares(expr: IrExpr, files: StatsTable) -> Shares | None:
    match expr:
        case And(operands):
            known = [part for part in (_shares(operand, files) for operand in operands) if part is not None]
            return np.prod(known, axis=0) if known else None
        case Or(operands):
            parts = [_shares(operand, files) for operand in operands]
            given = [part for part in parts if part is not None]
            return np.minimum(np.sum(given, axis=0), 1.0) if len(given) == len(parts) else None
        case Cmp(column, op, value):
            return _within(files.columns.get(column.field_id), op, physical(column.type, value))
        case Between(column, low, high):
            known_column = files.columns.get(column.field_id)
            below = _within(known_column, CmpOp.LE, physical(column.type, high))
            above = _within(known_column, CmpOp.GE, physical(column.type, low))
            return None if below is None or above is None else np.maximum(below + above - 1.0, 0.0)
        case InList(column, values, False):
            found = [_within(files.columns.get(column.field_id), CmpOp.EQ, physical(column.type, v)) for v in values]
            given = [part for part in found if part is not None]
            return np.minimum(np.sum(given, axis=0), 1.0) if given else None
    return None


def _within(stats: ColumnStats | None, op: CmpOp, value: Value) -> Shares | None:
    """The fraction of each file's values that match; all of them where a file has no bounds."""
    if stats is None or stats.lower is None or stats.upper is None or not isinstance(value, int | float):
        return None
    lower, upper = stats.lower.values, stats.upper.values
    if not isinstance(lower, np.ndarray) or not isinstance(upper, np.ndarray):
        return None
    valid = stats.lower.valid & stats.upper.valid
    # Values of unknown bounds are undefined, and infinite bounds have no fraction: both count as matching.
    known = valid & np.isfinite(lower) & np.isfinite(upper)
    low, high = (np.where(known, end, 0).astype(np.float64) for end in (lower, upper))
    step = 1.0 if lower.dtype.kind == "i" else 0.0
    # Bounds near the limits of a double overflow: an infinite fraction is clipped, NaN is ignored.
    with np.errstate(over="ignore", invalid="ignore"):
        width = high - low + step
        # A file of one floating-point value has no width: its rows match all or not at all.
        constant, width = width == 0, np.where(width == 0, 1.0, width)
        match op:
            case CmpOp.LT | CmpOp.LE:
                share = (value - low + step * (op is CmpOp.LE)) / width
                at_once = low < value if op is CmpOp.LT else low <= value
            case CmpOp.GT | CmpOp.GE:
                share = (high - value + step * (op is CmpOp.GE)) / width
                at_once = low > value if op is CmpOp.GT else low >= value
            case CmpOp.EQ | CmpOp.NULL_SAFE_EQ if step:
                share = at_once = np.where((low <= value) & (value <= high), step / width, 0.0)
            case _:
                return None
    spread = np.clip(np.nan_to_num(share, nan=1.0), 0.0, 1.0)
    return np.where(known, np.where(constant, at_once, spread), 1.0)
