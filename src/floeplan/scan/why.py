"""``why``: which pass, conjunct and statistic keep or drop one data file.

The passes of planning run on this file alone, in their order; the first that drops it is the answer. Page indexes and
bloom filters are used too. Fail-safe: a file whose footer cannot be used is kept, as in planning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, FloatType, PrimitiveType

from floeplan.catalog import load_table
from floeplan.display import Displayed
from floeplan.errors import BadInputError, FloeplanError, UnknownFileError, UnsupportedError
from floeplan.formats.stored import PARQUET
from floeplan.metadata.manifests.entries import EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import DATA
from floeplan.metadata.manifests.stats import file_stats, manifest_stats, partition_stats
from floeplan.parquet.footer.footer import ParquetFooter, cached_footer
from floeplan.parquet.footer.statistics import row_group_stats
from floeplan.parquet.prune.result import PruneResult
from floeplan.parquet.source import ByteSource, open_referenced
from floeplan.partition.transforms import from_physical
from floeplan.predicate.build import columns, conjuncts
from floeplan.predicate.compile import CompileResult, PredicateSource, compile_predicate
from floeplan.predicate.evaluate import BoundsTest
from floeplan.predicate.ir import TRUE, Bounded, IrExpr, IsNaN, IsNull
from floeplan.predicate.literals import Value, value_json
from floeplan.predicate.stats import Bound, ColumnStats, StatsTable, TriState, kleene, to_mask
from floeplan.scan.footers import FooterPruner, file_pruner
from floeplan.scan.model import ScanOptions
from floeplan.scan.projection import readable_value
from floeplan.snapshot.effects import LeafAnswers, Predicate, evaluate_conjuncts
from floeplan.snapshot.passes import evaluate_manifests
from floeplan.snapshot.reader import ScanTarget, SnapshotReader, resolve_target
from floeplan.text import counted

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

MANIFEST_LIST, MANIFEST_ENTRIES, ROW_GROUPS, PAGES = "manifest-list", "manifest-entries", "row-groups", "pages"
_FOOTER_PASSES = (
    (ROW_GROUPS, ScanOptions(bloom_filter=True)),
    (PAGES, ScanOptions(bloom_filter=True, page_index=True)),
)
_SHOWN = 3


@dataclass(frozen=True, slots=True, repr=False)
class Why(Displayed):
    """Why a file is read or not.

    Attributes:
        file: The path of the file.
        kept: Whether a scan reads it.
        dropped_in: The pass that drops it: ``manifest-list``, ``manifest-entries``, ``row-groups`` or ``pages``.
        conjunct: The condition that drops it, or the first one that no statistic decides; ``None`` if none is open.
        statistic: The statistic that decides, or that leaves the condition open.
        spec_id: The partition spec of the file.
        reason: All of it in one line.
    """

    file: str
    kept: bool
    dropped_in: str | None
    conjunct: str | None
    statistic: str | None
    spec_id: int
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; the pass is ``pass``."""
        found = {name: getattr(self, name) for name in self.__slots__ if name != "dropped_in"}
        return found | {"pass": self.dropped_in}


def why(
    table: Table | str,
    file: str,
    where: PredicateSource | None = None,
    *,
    snapshot_id: int | None = None,
    ref: str | None = None,
    case_sensitive: bool = True,
    catalog: str | Catalog | None = None,
) -> Why:
    """Explain why a scan reads a data file or not.

    Args:
        table: A PyIceberg table, ``namespace.name``, or the path of a ``*.metadata.json``.
        file: The path of the file, or its last part, if no other file of the snapshot ends with it.
        where: The predicate; every file is read when not given.
        snapshot_id: The snapshot; the current one by default.
        ref: A branch or tag.
        case_sensitive: Whether column names must match exactly.
        catalog: A PyIceberg catalog or the name of one, for a table given by name.

    Raises:
        UnknownFileError: The snapshot has no such file.
        BadInputError: Several files end with it, or the predicate is invalid.
    """
    target = resolve_target(load_table(table, catalog), snapshot_id=snapshot_id, ref=ref)
    compiled = compile_predicate(TRUE if where is None else where, target.schema, case_sensitive=case_sensitive)
    reader = SnapshotReader.open(target.table, target.snapshot, cache=True)
    listed = reader.entries(reader.manifest_rows(DATA), EntryColumns(frozenset()))
    row = find_file(listed, file)
    # The statistics of one file: only its own manifest is read for them.
    stats = frozenset(columns(compiled.predicate))
    entries = reader.entries(listed.ints("manifest")[row : row + 1], EntryColumns(frozenset(), stats=stats))
    return why_entry(target, reader, compiled, entries.filter(entries.ints("ordinal") == listed.ints("ordinal")[row]))


def find_file(entries: EntriesTable, file: str) -> int:
    """The row of the file with this path; else of the only one whose path ends with it, at a separator if possible.

    Raises:
        UnknownFileError: No path ends with it.
        BadInputError: Several paths end with it.
    """
    exact = pc.index(entries.path, pa.scalar(file, entries.path.type)).as_py()
    if exact >= 0:
        return int(exact)
    for suffix in (f"/{file.lstrip('/')}", file):
        rows = np.flatnonzero(to_mask(pc.ends_with(entries.path, suffix)) & bool(file))
        paths = entries.path.take(rows[: _SHOWN + 1]).to_pylist()
        if len(rows) == 1:
            return int(rows[0])
        if len(rows) > 1:
            shown = ", ".join(paths[:_SHOWN]) + (", …" if len(paths) > _SHOWN else "")
            raise BadInputError(f"{len(rows):,} data files end with {file}: {shown}", context={"file": file})
    raise UnknownFileError(
        f"the snapshot has no data file {file!r}; 'floeplan plan TABLE --json' lists those that a scan reads",
        context={"file": file},
    )


def why_entry(target: ScanTarget, reader: SnapshotReader, compiled: CompileResult, entry: EntriesTable) -> Why:
    """Explain one manifest entry, read with the statistics of the predicate's columns."""
    predicate = Predicate(compiled.predicate, columns(compiled.predicate), reader.union)
    return _Inquiry(target, reader, compiled, predicate, entry).run()


@dataclass(frozen=True, slots=True)
class _Inquiry:
    """One file and one predicate: a method per pass, each with its answer if it drops the file."""

    target: ScanTarget
    reader: SnapshotReader
    compiled: CompileResult
    predicate: Predicate
    entry: EntriesTable

    def run(self) -> Why:
        if not int(self.entry.record_count[0]):
            return self._dropped(MANIFEST_ENTRIES, None, "record count 0", "the file has no rows")
        if self.predicate.expr == TRUE:
            return self._kept(None, None, "no filter")
        return self._manifest() or self._entry()

    def _manifest(self) -> Why | None:
        """Pass 1: the partition summaries of its manifest."""
        listed = self.reader.manifests.take(self.entry.ints("manifest")[:1])
        evaluation = evaluate_manifests(self.predicate, listed)
        for conjunct, is_kept in zip(evaluation.conjuncts, evaluation.parts.keep[:, 0], strict=True):
            if not is_kept:
                stats = manifest_stats(listed, self.predicate.fields)
                statistic = self._partition_text(conjunct, stats, "partition summary of its manifest: {} {}")
                return self._dropped(MANIFEST_LIST, conjunct, statistic)
        return None

    def _entry(self) -> Why:
        """Pass 2: its partition values and column bounds."""
        answers = LeafAnswers(self.predicate, self.entry)
        nonempty = answers.bounds.nonempty
        evaluation = evaluate_conjuncts(self.predicate.expr, nonempty, answers.by_both)
        statistics = []
        for conjunct in evaluation.conjuncts:
            alone = kleene(conjunct, nonempty, answers.by_partition)
            by_partition = not alone.keep[0] or bool(alone.all_match[0])
            statistics.append(self._partition(conjunct) if by_partition else self._bounds(conjunct, answers.bounds))
        parts = list(zip(evaluation.conjuncts, statistics, evaluation.parts.states()[:, 0].tolist(), strict=True))
        for conjunct, statistic, state in parts:
            if state == TriState.FALSE:
                return self._dropped(MANIFEST_ENTRIES, conjunct, statistic)
        for conjunct, statistic, state in parts:
            if state != TriState.TRUE:
                return self._row_groups(conjunct, statistic)
        return self._kept(None, "; ".join(statistics), "every row matches")

    def _row_groups(self, conjunct: IrExpr, statistic: str) -> Why:
        """Pass 3: row groups by statistics and bloom filters, then pages; ``conjunct`` is the first undecided one."""
        path = self.entry.path[0].as_py()
        try:
            format_ = self.entry.array("file_format")[0].as_py()
            if format_ == "ORC":
                return self._stripes(path, conjunct, statistic)
            if format_ != PARQUET:
                raise UnsupportedError(f"{format_} files have no statistics")
            source = open_referenced(path, self.target.table.io)
            footer = cached_footer(path, int(self.entry.ints("file_size_in_bytes")[0]), source)
            if not footer.has_field_ids:
                raise UnsupportedError("its columns carry no field ids")
            kept = None
            for pass_, options in _FOOTER_PASSES:
                kept = self._pruned(self.predicate.expr, source, footer, options)
                if not kept.row_groups:
                    return self._dropped_inside(pass_, options, source, footer)
        except (FloeplanError, OSError) as error:
            return self._kept(conjunct, statistic, f"its footer cannot be used: {error}")
        assert kept is not None, "the loop ran"
        groups = f"{len(kept.row_groups):,} of {counted(kept.row_groups_total, 'row group')} may match"
        return self._kept(conjunct, statistic, f"{conjunct} is not decided by {statistic}; {groups}")

    def _stripes(self, path: str, conjunct: IrExpr, statistic: str) -> Why:
        """Pass 3 for an ORC file: stripes by statistics."""
        footers = FooterPruner(self.target, self.compiled, self.reader.union, ScanOptions(), None)
        found = footers.stripes(open_referenced(path, self.target.table.io), int(self.entry.spec_id[0]))
        if not found.kept:
            return self._dropped(ROW_GROUPS, self.predicate.expr, f"statistics of {counted(found.total, 'stripe')}")
        stripes = f"{len(found.kept):,} of {counted(found.total, 'stripe')} may match"
        return self._kept(conjunct, statistic, f"{conjunct} is not decided by {statistic}; {stripes}")

    def _pruned(self, expr: IrExpr, source: ByteSource, footer: ParquetFooter, options: ScanOptions) -> PruneResult:
        fields = self.reader.union.spec(int(self.entry.spec_id[0])).fields
        pruner = file_pruner(replace(self.compiled, predicate=expr), self.target.schema, fields, options)
        floats = [c for c in columns(expr).values() if isinstance(c.type, FloatType | DoubleType)]
        known = file_stats(self.entry, floats).columns.items()
        without_nan = frozenset(i for i, stats in known if not stats.may_nan[0])
        return pruner.examine(source, footer, without_nan=without_nan).result()

    def _dropped_inside(self, pass_: str, options: ScanOptions, source: ByteSource, footer: ParquetFooter) -> Why:
        """The conjunct that drops every row group or page alone; the whole predicate where it takes several."""
        operands = conjuncts(self.predicate.expr)
        alone = (one for one in operands if not self._pruned(one, source, footer, options).row_groups)
        conjunct = next(alone, self.predicate.expr)
        groups = counted(footer.num_row_groups, "row group")
        if pass_ == PAGES:
            return self._dropped(pass_, conjunct, f"page index of {groups}")
        if self._pruned(conjunct, source, footer, ScanOptions()).row_groups:
            return self._dropped(pass_, conjunct, f"bloom filters of {groups}")
        used = columns(conjunct).values()
        stats = row_group_stats(footer, used).columns
        shown = [f"{c} {_ranges(stats.get(c.field_id), _column_text(c.type), footer.num_row_groups)}" for c in used]
        return self._dropped(pass_, conjunct, f"statistics of {groups}: {'; '.join(shown)}")

    def _partition(self, conjunct: IrExpr) -> str:
        return self._partition_text(conjunct, partition_stats(self.entry, self.predicate.fields), "partition {}={}")

    def _partition_text(self, conjunct: IrExpr, stats: StatsTable, form: str) -> str:
        """The values of the partition fields on the conjunct's columns."""
        used, spec_id = columns(conjunct), int(self.entry.spec_id[0])
        parts = []
        for field in self.predicate.fields:
            if field.bound.source_id in used and spec_id in field.positions and field.id in stats.columns:

                def shown(value: Value, bound: Any = field.bound) -> object:
                    return readable_value(bound, bound.column.type, from_physical(bound.column.type, value))

                parts.append(form.format(field.name, _ranges(stats.columns[field.id], shown, 1)))
        return ", ".join(parts)

    def _bounds(self, conjunct: IrExpr, stats: StatsTable) -> str:
        """The bounds of the conjunct's columns in the manifest; for IS NULL and isnan the counts."""
        parts = []
        for column in columns(conjunct).values():
            if isinstance(conjunct, IsNull | IsNaN):
                name = "null" if isinstance(conjunct, IsNull) else "nan"
                count = int(self.entry.ints(f"{name}_count.{column.field_id}")[0])
                parts.append(f"{name} count of {column}: {'unknown' if count < 0 else count}")
                continue
            stored = stats.columns.get(column.field_id)
            if isinstance(conjunct, Bounded) and isinstance(conjunct.test, BoundsTest) and stored is not None:
                known = conjunct.test.shown(stored)
            else:
                known = _ranges(stored, _column_text(column.type), 1)
            parts.append(f"bounds of {column}: {known}")
        return ", ".join(parts) or "no statistic"

    def _dropped(self, pass_: str, conjunct: IrExpr | None, statistic: str, reason: str | None = None) -> Why:
        text = reason or f"{conjunct} matches no row: {statistic}"
        return self._answer(False, pass_, conjunct, statistic, text)

    def _kept(self, conjunct: IrExpr | None, statistic: str | None, reason: str) -> Why:
        return self._answer(True, None, conjunct, statistic, reason)

    def _answer(self, kept: bool, pass_: str | None, conjunct: IrExpr | None, statistic: str | None, text: str) -> Why:
        named = None if conjunct is None else str(conjunct)
        return Why(self.entry.path[0].as_py(), kept, pass_, named, statistic, int(self.entry.spec_id[0]), text)


def _column_text(type_: PrimitiveType) -> Callable[[Value], object]:
    return lambda value: value_json(type_, from_physical(type_, value))


def _ranges(stats: ColumnStats | None, shown: Callable[[Value], object], number: int) -> str:
    """What a column holds in the first containers: a value, a range, only nulls, or unknown."""
    found = [_range(stats, shown, at) for at in range(min(number, _SHOWN))]
    return ", ".join(found) + (", …" if number > _SHOWN else "")


def _range(stats: ColumnStats | None, shown: Callable[[Value], object], at: int) -> str:
    if stats is None:
        return "unknown"
    if not stats.may_value[at]:
        return "NaN" if stats.may_nan[at] else "null"
    low, high = (_bound(bound, shown, at) for bound in (stats.lower, stats.upper))
    return low if low == high else f"{low} to {high}"


def _bound(bound: Bound | None, shown: Callable[[Value], object], at: int) -> str:
    if bound is None or not bound.valid[at]:
        return "unknown"
    raw = bound.values[at]
    return str(shown(raw.item() if isinstance(raw, np.generic) else raw.as_py()))
