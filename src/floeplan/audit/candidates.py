"""Layouts to try for a table: partitioning, sorting and clustering by the columns that its queries filter by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from pyiceberg.partitioning import PartitionField
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
)

from floeplan.audit.layout import Points
from floeplan.audit.workload import Workload
from floeplan.partition.evolution import Term
from floeplan.partition.fields import BoundField, bind_field, transform_name
from floeplan.partition.transforms import Transform, can_apply
from floeplan.predicate.build import column_of, leaves
from floeplan.predicate.ir import Column

SPEC, SORT, ZORDER, UPGRADE, MANIFESTS = KINDS = ("spec", "sort", "zorder", "upgrade-spec", "manifests")
MOST_COLUMNS = 4
"""The number of columns to try, those that most runs filter by."""

_FIRST_FREE_ID = 1 << 30
_TRANSFORMS: tuple[Transform, ...] = (
    IdentityTransform(),
    HourTransform(),
    DayTransform(),
    MonthTransform(),
    BucketTransform(16),
    TruncateTransform(4),
)


@dataclass(frozen=True, slots=True)
class Part:
    """A partition field of a layout, and its term."""

    field: BoundField
    term: Term

    def __str__(self) -> str:
        """The column of an identity, otherwise the transform around it: ``day(ts)``, ``bucket(16, id)``."""
        source, name = ".".join(self.term.column), transform_name(self.term.transform)
        match self.term.transform:
            case IdentityTransform():
                return source
            case BucketTransform(num_buckets=parameter) | TruncateTransform(width=parameter):
                return f"{name}({parameter}, {source})"
        return f"{name}({source})"


@dataclass(frozen=True, slots=True)
class Idea:
    """A layout to try: its partition fields, and the columns to sort or cluster by within partitions."""

    kind: str
    parts: tuple[Part, ...]
    by: tuple[Column, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns or transforms of the layout, as text."""
        return tuple(map(str, self.by or self.parts))

    @property
    def fields(self) -> tuple[BoundField, ...]:
        """The partition fields."""
        return tuple(part.field for part in self.parts)


def workload_columns(workload: Workload) -> list[Column]:
    """The columns that predicates use, those of most runs first."""
    runs: Counter[int] = Counter()
    found: dict[int, Column] = {}
    for predicate, weight in workload.predicates:
        columns = {column.field_id: column for leaf in leaves(predicate) if (column := column_of(leaf)) is not None}
        found |= columns
        runs.update(dict.fromkeys(columns, weight))
    return [found[field_id] for field_id, _ in runs.most_common()]


def ideas(points: Points, filtered: Sequence[Column], current: tuple[Part, ...]) -> Iterator[Idea]:
    """Sort orders and Z-orders within the current spec, specs of one field, and the current spec plus one field."""
    known = [column for column in filtered if column.field_id in points.columns][:MOST_COLUMNS]
    for column in known:
        yield Idea(SORT, current, (column,))
    for number in (2, 3):
        for some in combinations(known, number):
            yield Idea(ZORDER, current, some)
    for position, column in enumerate(known):
        for transform in _TRANSFORMS:
            if not can_apply(transform, column.type):
                continue
            part = Part(_field(column, transform, _FIRST_FREE_ID + position), Term(column.path, transform))
            yield Idea(SPEC, (part,))
            if current and column.field_id not in {old.field.source_id for old in current}:
                yield Idea(SPEC, (*current, part))


def _field(column: Column, transform: Transform, field_id: int) -> BoundField:
    partition = PartitionField(column.field_id, field_id, transform, str(column))
    return bind_field(partition, {column.field_id: (column.type,)})
