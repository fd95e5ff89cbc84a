"""The layouts that the advisor tries for the columns that queries filter by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import pyiceberg.transforms as pt
from pyiceberg.partitioning import PartitionField

from floeplan.audit.candidates import BINPACK, SORT, SPEC, ZORDER
from floeplan.audit.layout import Points
from floeplan.maintenance.coarser_spec import CoarserSpec
from floeplan.partition.evolution import Term
from floeplan.partition.fields import BoundField, bind_field
from floeplan.partition.transforms import Transform, can_apply
from floeplan.predicate.ir import Column

MOST_COLUMNS = 4
"""The number of columns to try, those that most runs filter by."""

_FIRST_FREE_ID = 1 << 30
_TIME_UNITS: tuple[Transform, ...] = (pt.HourTransform(), pt.DayTransform(), pt.MonthTransform())
_TRANSFORMS: tuple[Transform, ...] = (
    pt.IdentityTransform(),
    *_TIME_UNITS,
    pt.BucketTransform(16),
    pt.TruncateTransform(4),
)


@dataclass(frozen=True, slots=True)
class Part:
    """A partition field of a layout, and its term."""

    field: BoundField
    term: Term

    def __str__(self) -> str:
        return self.term.sql


@dataclass(frozen=True, slots=True)
class Idea:
    """A layout to try: its partition fields, and the columns to sort or cluster by within partitions."""

    kind: str
    parts: tuple[Part, ...]
    by: tuple[Column, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns or transforms of the layout, as text."""
        return () if self.kind == BINPACK else tuple(map(str, self.by or self.parts))

    @property
    def fields(self) -> tuple[BoundField, ...]:
        """The partition fields."""
        return tuple(part.field for part in self.parts)


def layout_ideas(points: Points, filtered: Sequence[Column], current: tuple[Part, ...] | None) -> Iterator[Idea]:
    """The current spec compacted, sort orders and Z-orders within it, specs of one field, and one more field.

    Without values of the columns of the current spec, which is then ``None``, only other specs.
    """
    known = [column for column in filtered if column.field_id in points.columns][:MOST_COLUMNS]
    if current is not None:
        yield Idea(BINPACK, current)
        yield from (Idea(SORT, current, (column,)) for column in known)
        yield from (Idea(ZORDER, current, some) for number in (2, 3) for some in combinations(known, number))
    for position, column in enumerate(known):
        for transform in _TRANSFORMS:
            if not can_apply(transform, column.type):
                continue
            field = PartitionField(column.field_id, _FIRST_FREE_ID + position, transform, str(column))
            bound = bind_field(field, {column.field_id: (column.type,)})
            part = Part(bound, Term(column.path, transform))
            yield Idea(SPEC, (part,))
            if current and column.field_id not in {old.field.source_id for old in current}:
                yield Idea(SPEC, (*current, part))


def coarser_ideas(coarser: CoarserSpec | None, columns: Sequence[Column], points: Points) -> Iterator[Idea]:
    """The coarser spec that the doctor suggests."""
    known = {column.path: column for column in columns if column.field_id in points.columns}
    if coarser is not None and all(term.column in known for term in coarser.terms):
        parts = []
        for position, term in enumerate(coarser.terms):
            column = known[term.column]
            field = PartitionField(column.field_id, _FIRST_FREE_ID + position, term.transform, str(column))
            parts.append(Part(bind_field(field, {column.field_id: (column.type,)}), term))
        yield Idea(SPEC, tuple(parts))
