"""The third pass: which row groups, and on request which pages, of the kept files can hold a matching row.

Only files that are neither dropped nor proven are opened. A column that a file lacks is null in it, unless the table
gives it another value (an identity partition value, an initial default): leaves on such columns are not evaluated.
Parquet statistics do not count NaN, which sorts above every number; a manifest may prove that a file has none.

Fail-safe: a footer that cannot be read, a file that is not Parquet, or one whose columns carry no field ids, is kept
whole, with a warning.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform

from floeplan.errors import FloeplanError
from floeplan.parquet.footer.footer import ParquetFooter, read_footer
from floeplan.parquet.prune.options import PruneOptions
from floeplan.parquet.prune.pruner import Pruner
from floeplan.parquet.prune.result import PruneResult
from floeplan.parquet.source import ByteSource, open_source
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.build import column_of, map_leaves
from floeplan.predicate.compile import CompileResult
from floeplan.predicate.ir import IrExpr, Opaque
from floeplan.predicate.stats import TriState
from floeplan.scan.model import PlanWarning, RowGroups, ScanOptions
from floeplan.schemas import fields_by_id

FOOTER_CACHE_FILES = 4096


@dataclass(frozen=True, slots=True)
class FooterRequest:
    """A file to open: its row in the plan, location, partition spec, and the columns that hold no NaN."""

    row: int
    path: str
    size: int
    spec_id: int
    format: str
    without_nan: frozenset[int]


class FooterCache:
    """An LRU cache of footers by path and size; data files never change."""

    def __init__(self, limit: int = FOOTER_CACHE_FILES) -> None:
        self._limit = limit
        self._footers: OrderedDict[tuple[str, int], ParquetFooter] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, request: FooterRequest, source: ByteSource) -> ParquetFooter:
        """The footer of a file, read on a miss."""
        key = (request.path, request.size)
        with self._lock:
            if key in self._footers:
                self._footers.move_to_end(key)
                return self._footers[key]
        footer = read_footer(source)
        with self._lock:
            self._footers[key] = footer
            while len(self._footers) > self._limit:
                self._footers.popitem(last=False)
        return footer


_CACHE = FooterCache()


class FooterPass:
    """Opens files and prunes their row groups, with one pruner per partition spec."""

    def __init__(
        self,
        compiled: CompileResult,
        schema: Schema,
        projected: Iterable[int] | None,
        union: UnionPartitionType,
        io: FileIO,
        options: ScanOptions,
    ) -> None:
        self._compiled = compiled
        self._schema = schema
        self._projected = None if projected is None else frozenset(projected)
        self._union = union
        self._io = io
        self._options = options
        self.pruner = cache(self._make_pruner)

    def run(self, requests: Sequence[FooterRequest]) -> tuple[dict[int, RowGroups], list[PlanWarning]]:
        """Open all files, ``concurrency`` at a time, and return their row groups by row of the plan."""
        if not requests:
            return {}, []
        with ThreadPoolExecutor(min(self._options.concurrency, len(requests)), "floeplan-footer") as pool:
            answers = list(pool.map(self._open, requests))
        opened = {r.row: answer for r, answer in zip(requests, answers, strict=True) if isinstance(answer, RowGroups)}
        return opened, [answer for answer in answers if isinstance(answer, PlanWarning)]

    def _open(self, request: FooterRequest) -> RowGroups | PlanWarning:
        if request.format != "PARQUET":
            return _unopened(request, f"it is {request.format}, not Parquet")
        try:
            source = open_source(request.path, self._io)
            footer = _CACHE.get(request, source)
            if not footer.has_field_ids:
                return _unopened(request, "its columns carry no field ids")
            pruner = self.pruner(request.spec_id)
            result = pruner.examine(source, footer, without_nan=request.without_nan).result()
        except (FloeplanError, OSError) as error:
            return _unopened(request, str(error))
        return self._row_groups(footer, result)

    def _row_groups(self, footer: ParquetFooter, result: PruneResult) -> RowGroups:
        kept = np.array(result.row_groups, dtype=np.int64)
        whole = int(footer.row_group_rows[kept].sum()) == result.rows_selected
        columns = [leaf for leaf in footer.leaves if self._projected is None or leaf.field_id in self._projected]
        size = sum(int(footer.chunks(leaf).total_compressed_size[kept].sum()) for leaf in columns)
        return RowGroups(
            kept=result.row_groups,
            total=footer.num_row_groups,
            rows=result.rows_selected,
            bytes=size,
            selection=None if whole else result.file_selection,
            proven=bool((result.row_group_states[kept] == TriState.TRUE).all()),
            pages_total=result.pages_total,
            pages_kept=result.pages_kept,
        )

    def _make_pruner(self, spec_id: int) -> Pruner:
        options = PruneOptions(page_index=self._options.page_index, bloom_filter=self._options.bloom_filter)
        fields = self._union.spec(spec_id).fields
        constant = {field.source_id for field in fields if isinstance(field.transform, IdentityTransform)}
        defaulted = {i for i, f in fields_by_id(self._schema).items() if f.initial_default is not None}
        expr = map_leaves(self._compiled.predicate, lambda leaf: _open_ended(leaf, constant | defaulted))
        return Pruner(CompileResult(expr, expr, expr, self._compiled.errors), self._schema, options)


def _open_ended(leaf: IrExpr, columns: set[int]) -> IrExpr:
    """Make a leaf on one of these columns opaque, so that no statistics answer it."""
    column = column_of(leaf)
    return Opaque(str(leaf), (column.field_id,), None) if column is not None and column.field_id in columns else leaf


def _unopened(request: FooterRequest, why: str) -> PlanWarning:
    return PlanWarning(
        "footer-not-used", f"{request.path} is kept whole: {why}", {"file": request.path, "spec_id": request.spec_id}
    )
