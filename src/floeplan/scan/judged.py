"""Data files after the second pass: those that are kept, what is known of each, and what was counted on the way.

The pass works on any slice of the manifests, so that slices can be judged elsewhere and put together: the result is
the same, and in the same order, as judging all of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.types import PrimitiveType, UnknownType

from floeplan.metadata.entries import EntriesTable, Status
from floeplan.predicate.build import conjuncts
from floeplan.predicate.ir import IrExpr
from floeplan.predicate.tristate import Mask
from floeplan.scan.passes import Predicate, judge_entries, why_little_dropped
from floeplan.scan.summary import ConjunctEffect
from floeplan.scan.verdict import drops_little, residuals


@dataclass(frozen=True, slots=True)
class JudgedFiles:
    """Kept files with their tri-state and the conjuncts proven of them; ``total`` and ``effects`` count all files."""

    entries: EntriesTable
    states: npt.NDArray[np.int8]
    proven: Mask
    total: int
    effects: tuple[ConjunctEffect, ...]

    def narrowed(self, keep: Mask) -> JudgedFiles:
        """Without the files where the mask is false."""
        if keep.all():
            return self
        return JudgedFiles(self.entries.filter(keep), self.states[keep], self.proven[keep], self.total, self.effects)

    def residuals(self, predicate: IrExpr) -> tuple[tuple[IrExpr, ...], npt.NDArray[np.intp]]:
        """The distinct residuals, and which of them each file needs."""
        return residuals(conjuncts(predicate), self.proven)


def judge_files(predicate: Predicate, entries: EntriesTable) -> JudgedFiles:
    """Judge data files. Entries of deleted files are judged too but neither kept nor counted: that copies no column."""
    verdict = judge_entries(predicate, entries)
    live = entries.status != Status.DELETED
    keep = verdict.tri.keep & live
    rows = np.flatnonzero(keep)
    return JudgedFiles(
        entries=entries if len(rows) == len(keep) else entries.filter(keep),
        states=verdict.tri.states()[rows],
        proven=verdict.proven(rows),
        total=int(np.count_nonzero(live)),
        effects=verdict.effects(live, partial(why_little_dropped, predicate, entries, live)),
    )


def concat_judged(parts: Sequence[JudgedFiles]) -> JudgedFiles:
    """Slices put together in their order."""
    if len(parts) == 1:
        return parts[0]
    total = sum(part.total for part in parts)
    return JudgedFiles(
        entries=_concat_entries([part.entries for part in parts]),
        states=np.concatenate([part.states for part in parts]),
        proven=np.concatenate([part.proven for part in parts]),
        total=total,
        effects=tuple(_together(effects, total) for effects in zip(*(part.effects for part in parts), strict=True)),
    )


def _concat_entries(parts: Sequence[EntriesTable]) -> EntriesTable:
    """Partition columns whose type only manifests can tell may be untyped in slices that hold none of them."""
    table = pa.concat_tables([part.table for part in parts], promote_options="default").combine_chunks()
    unknown = UnknownType()
    types: dict[int, PrimitiveType] = {}
    for part in parts:
        types |= {i: t for i, t in part.partition_types.items() if isinstance(types.get(i, unknown), UnknownType)}
    return EntriesTable(table, types)


def _together(effects: tuple[ConjunctEffect, ...], total: int) -> ConjunctEffect:
    """One conjunct over all slices; it needs an excuse only when it dropped little in all."""
    dropped = sum(effect.dropped for effect in effects)
    whys = [effect.why for effect in effects if effect.why]
    return ConjunctEffect(effects[0].conjunct, dropped, whys[0] if whys and drops_little(dropped, total) else "")
