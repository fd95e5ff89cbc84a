"""Pass 3 of a plan: opens the footers of data files, and keeps the row groups and pages that may match.

Of ORC files it keeps stripes; Avro files have no statistics and are kept whole.

A file whose footer cannot be used is kept whole, with a warning. Footers are cached: data files never change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform

from floeplan.errors import FloeplanError, UnsupportedError
from floeplan.formats.stored import PARQUET
from floeplan.object_stores import is_s3
from floeplan.parquet.footer.footer import LEAST_TAIL, ParquetFooter, cached_footer, known_footer, likely_tail
from floeplan.parquet.prune.options import PruneOptions
from floeplan.parquet.prune.pruner import Pruner
from floeplan.parquet.source import ByteSource, ObjectStoreSource, is_local, open_referenced
from floeplan.partition.fields import BoundField
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.build import column_of, columns, map_leaves
from floeplan.predicate.compile import CompileResult
from floeplan.predicate.evaluate import evaluate
from floeplan.predicate.ir import IrExpr, Opaque
from floeplan.predicate.stats import StatsTable, TriState
from floeplan.scan.model import PlanWarning, RowGroups, ScanOptions
from floeplan.schemas import fields_by_id
from floeplan.snapshot.reader import ScanTarget
from floeplan.vectors import Ints

LOCAL_THREADS = 8


class FooterFile(NamedTuple):
    """A data file whose footer is opened; ``without_nan`` are columns that have no NaN according to the manifest."""

    path: str
    size: int
    format: str
    spec_id: int
    without_nan: frozenset[int]


class _Undecided(NamedTuple):
    footer: ParquetFooter
    stats: StatsTable


Answer: TypeAlias = RowGroups | PlanWarning | None


class FooterPruner:
    """Opens files of one plan; thread-safe. ``projected`` are the field ids whose bytes count, all if ``None``."""

    def __init__(
        self,
        target: ScanTarget,
        compiled: CompileResult,
        union: UnionPartitionType,
        options: ScanOptions,
        projected: frozenset[int] | None,
    ) -> None:
        self.target, self.projected, self._options = target, projected, options
        self._within_groups = options.page_index or options.bloom_filter
        self._pruner = cache(lambda spec: file_pruner(compiled, target.schema, union.spec(spec).fields, options))
        self._tail = partial(likely_tail, columns=len(fields_by_id(target.schema)))
        self._predicate = cache(lambda spec: stored_predicate(compiled, target.schema, union.spec(spec).fields))

    def open(self, files: Sequence[FooterFile]) -> list[Answer]:
        """The row groups of each file that may match; a warning when its footer cannot be used.

        ``None`` for an Avro file, which has no statistics. Files with the same columns are evaluated at once.
        """
        answers: list[Any] = self._concurrently(files)
        alike: dict[tuple[int, int], list[int]] = {}
        for at, (file, answer) in enumerate(zip(files, answers, strict=True)):
            if isinstance(answer, _Undecided):
                alike.setdefault((file.spec_id, id(answer.footer.columns)), []).append(at)
        for (spec_id, _), group in alike.items():
            footers, stats = zip(*(answers[at] for at in group), strict=True)
            states = self._pruner(spec_id).row_group_states(footers[0], stats)
            for at, footer, found in zip(group, footers, states, strict=True):
                kept = np.flatnonzero((found != TriState.FALSE) & (footer.row_group_rows > 0))
                rows = int(footer.row_group_rows[kept].sum())
                answers[at] = self._row_groups(footer, kept, rows, bool((found[kept] == TriState.TRUE).all()))
        return answers

    def _concurrently(self, files: Sequence[FooterFile]) -> list[Answer | _Undecided]:
        """What each file has, with many files in flight against a store."""
        # Without a wait for storage, threads would only compete for the interpreter.
        if len(files) <= 1 or (not self._within_groups and all(known_footer(one.path, one.size) for one in files)):
            return list(map(self._examine, files))
        most = LOCAL_THREADS if all(is_local(one.path) for one in files) else self._options.concurrency
        if self._within_groups or not all(is_s3(one.path) for one in files):
            with ThreadPoolExecutor(min(most, len(files)), "floeplan-footer") as pool:
                return list(pool.map(self._examine, files))
        opened, found = deque[ByteSource | None](), []
        for at, file in enumerate(files):
            while at + len(opened) < len(files) and len(opened) < most:
                opened.append(self._begin(files[at + len(opened)]))
            found.append(self._examine(file, opened.popleft()))
        return found

    def _begin(self, file: FooterFile) -> ByteSource | None:
        """A file of S3 whose tail is being fetched; ``None`` if that has to wait."""
        if file.format != PARQUET or known_footer(file.path, file.size) is not None:
            return None
        with suppress(FloeplanError, OSError):  # reported when the file is examined
            source = open_referenced(file.path, self.target.table.io)
            assert isinstance(source, ObjectStoreSource), "of S3"
            source.begin_suffix(max(self._tail(file.size), LEAST_TAIL))
            return source
        return None

    def _examine(self, file: FooterFile, source: ByteSource | None = None) -> Answer | _Undecided:
        """The answer for one file, or what its row groups are evaluated by."""
        if file.format == "AVRO":
            return None
        try:
            footer = known_footer(file.path, file.size) if file.format == PARQUET and not self._within_groups else None
            if footer is None:
                source = source or open_referenced(file.path, self.target.table.io)
                if file.format == "ORC":
                    return self.stripes(source, file.spec_id)
                if file.format != PARQUET:
                    raise UnsupportedError(f"it is {file.format}, neither Parquet nor ORC")
                footer = cached_footer(file.path, file.size, source, self._tail(file.size))
            if not footer.has_field_ids:
                raise UnsupportedError("its columns carry no field ids")
            pruner = self._pruner(file.spec_id)
            if not self._within_groups:
                return _Undecided(footer, pruner.row_group_stats(footer, file.without_nan))
            result = pruner.examine(source, footer, without_nan=file.without_nan).result()
        except (FloeplanError, OSError) as error:
            context = {"file": file.path, "spec_id": file.spec_id}
            return PlanWarning("footer-not-used", f"{file.path} is kept whole: {error}", context)
        kept = np.array(result.row_groups, dtype=np.int64)
        proven = bool((result.row_group_states[kept] == TriState.TRUE).all())
        groups = self._row_groups(footer, kept, result.rows_selected, proven)
        whole = int(footer.row_group_rows[kept].sum()) == result.rows_selected
        selection = None if whole else result.file_selection
        return replace(groups, selection=selection, pages_total=result.pages_total, pages_kept=result.pages_kept)

    def _row_groups(self, footer: ParquetFooter, kept: Ints, rows: int, proven: bool) -> RowGroups:
        leaves = [leaf.index for leaf in footer.leaves if self.projected is None or leaf.field_id in self.projected]
        size = int(footer.compressed_sizes[leaves][:, kept].sum())
        return RowGroups(tuple(kept.tolist()), footer.num_row_groups, rows, size, None, proven)

    def stripes(self, source: ByteSource, spec_id: int) -> RowGroups:
        """The stripes of an ORC file that may match."""
        from floeplan.formats.orc_footer import read_orc_footer  # imported late: most tables have no ORC files

        footer = read_orc_footer(source)
        if not footer.has_field_ids:
            raise UnsupportedError("its columns carry no field ids")
        predicate = self._predicate(spec_id)
        states = evaluate(predicate, footer.stripe_stats(columns(predicate).values()))
        kept = np.flatnonzero(states.keep)
        return RowGroups(
            kept=tuple(kept.tolist()),
            total=len(footer.stripe_rows),
            rows=int(footer.stripe_rows[kept].sum()),
            bytes=int(footer.stripe_bytes[kept].sum()),
            selection=None,
            proven=bool(states.all_match[kept].all()),
        )


def file_pruner(compiled: CompileResult, schema: Schema, fields: Sequence[BoundField], options: ScanOptions) -> Pruner:
    """The pruner for the row groups of Parquet files of one partition spec."""
    expr = stored_predicate(compiled, schema, fields)
    prune_options = PruneOptions(page_index=options.page_index, bloom_filter=options.bloom_filter)
    return Pruner(CompileResult(expr, expr, expr, compiled.errors), schema, prune_options)


def stored_predicate(compiled: CompileResult, schema: Schema, fields: Sequence[BoundField]) -> IrExpr:
    """The predicate as the statistics inside a file of one partition spec can answer it.

    A column that a file lacks is null in it, unless the table gives it another value: an identity partition value or an
    initial default. Leaves on such columns become opaque, so that no statistics answer them.
    """
    given = {field.source_id for field in fields if isinstance(field.transform, IdentityTransform)}
    given |= {i for i, field in fields_by_id(schema).items() if field.initial_default is not None}

    def without_given(leaf: IrExpr) -> IrExpr:
        column = column_of(leaf)
        return Opaque(str(leaf), (column.field_id,), None) if column and column.field_id in given else leaf

    return map_leaves(compiled.predicate, without_given)
