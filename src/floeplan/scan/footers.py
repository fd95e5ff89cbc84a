"""Pass 3 of a plan: opens the footers of data files, and keeps the row groups and pages that may match.

Of ORC files it keeps stripes; Avro files have no statistics and are kept whole.

A file whose footer cannot be used is kept whole, with a warning. Footers are cached: data files never change.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

import numpy as np
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform

from floeplan.errors import FloeplanError, UnsupportedError
from floeplan.formats.stored import PARQUET
from floeplan.parquet.footer.footer import cached_footer, likely_tail
from floeplan.parquet.prune.options import PruneOptions
from floeplan.parquet.prune.pruner import Pruner
from floeplan.parquet.source import ByteSource, open_referenced
from floeplan.partition.fields import BoundField
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.build import column_of, columns, map_leaves
from floeplan.predicate.compile import CompileResult
from floeplan.predicate.evaluate import evaluate
from floeplan.predicate.ir import IrExpr, Opaque
from floeplan.predicate.stats import TriState
from floeplan.scan.model import PlanWarning, RowGroups, ScanOptions
from floeplan.schemas import fields_by_id
from floeplan.snapshot.reader import ScanTarget


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
        self.target, self.projected = target, projected
        self._pruner = cache(lambda spec: file_pruner(compiled, target.schema, union.spec(spec).fields, options))
        self._tail = partial(likely_tail, columns=len(fields_by_id(target.schema)))
        self._predicate = cache(lambda spec: stored_predicate(compiled, target.schema, union.spec(spec).fields))

    def open(
        self, path: str, size: int, format_: str, spec_id: int, without_nan: frozenset[int]
    ) -> RowGroups | PlanWarning | None:
        """The row groups of one file that may match; a warning when its footer cannot be used.

        ``None`` for an Avro file, which has no statistics.
        """
        if format_ == "AVRO":
            return None
        try:
            source = open_referenced(path, self.target.table.io)
            if format_ == "ORC":
                return self.stripes(source, spec_id)
            if format_ != PARQUET:
                raise UnsupportedError(f"it is {format_}, neither Parquet nor ORC")
            footer = cached_footer(path, size, source, self._tail(size))
            if not footer.has_field_ids:
                raise UnsupportedError("its columns carry no field ids")
            result = self._pruner(spec_id).examine(source, footer, without_nan=without_nan).result()
        except (FloeplanError, OSError) as error:
            context = {"file": path, "spec_id": spec_id}
            return PlanWarning("footer-not-used", f"{path} is kept whole: {error}", context)
        kept = np.array(result.row_groups, dtype=np.int64)
        whole = int(footer.row_group_rows[kept].sum()) == result.rows_selected
        columns = [leaf for leaf in footer.leaves if self.projected is None or leaf.field_id in self.projected]
        return RowGroups(
            kept=result.row_groups,
            total=footer.num_row_groups,
            rows=result.rows_selected,
            bytes=sum(int(footer.chunks(leaf).total_compressed_size[kept].sum()) for leaf in columns),
            selection=None if whole else result.file_selection,
            proven=bool((result.row_group_states[kept] == TriState.TRUE).all()),
            pages_total=result.pages_total,
            pages_kept=result.pages_kept,
        )

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
