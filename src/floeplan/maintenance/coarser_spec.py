"""``coarser_spec``: the partition spec that a table with too many small partitions should have.

A partition holds at least one file, so a rewrite cannot merge the files of partitions that are far below the target
file size: only a coarser spec does. Transforms are widened first, in the order in which they lose least (hours to days
to months to years, buckets halved); a field is dropped only when no transform is left to widen.

Rule: estimated from the partition values and sizes of the live files of the default spec, which is exact for the
partitions and assumes that rewritten files are full.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyiceberg import transforms as pt
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import DateType

from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.partition.evolution import Term
from floeplan.partition.fields import BoundField
from floeplan.partition.key import partition_codes
from floeplan.partition.transforms import Transform
from floeplan.partition.union import UnionPartitionType
from floeplan.rewrite.plan.candidates import FileSizes
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.text import counted, human_bytes
from floeplan.vectors import Ints

MANY_PARTITIONS = 50
FAR_BELOW = 10
"""A median partition below the target file size by this factor is far below it."""

_UNITS: dict[type[Transform], str] = {
    pt.HourTransform: "h",
    pt.DayTransform: "D",
    pt.MonthTransform: "M",
    pt.YearTransform: "Y",
}
_NULL = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class CoarserSpec:
    """A coarser spec and its effect.

    Attributes:
        terms: The fields of the coarser spec.
        changes: The clauses of ``ALTER TABLE`` that evolve the default spec to it.
        partitions: Partitions before and after.
        files: Files before and after a rewrite.
        median: Bytes of the median partition before and after.
        target: The target file size.
    """

    terms: tuple[Term, ...]
    changes: tuple[str, ...]
    partitions: tuple[int, int]
    files: tuple[int, int]
    median: tuple[int, int]
    target: int

    @property
    def message(self) -> str:
        """What is wrong, and what the coarser spec would do about it."""
        before, after = self.files
        fields = ", ".join(term.sql for term in self.terms)
        fix = f"partition by {fields} instead" if fields else "make the table unpartitioned"
        return (
            f"{counted(self.partitions[0], 'partition')} with a median size of {human_bytes(self.median[0])}, far "
            f"below the target file size of {human_bytes(self.target)}; a rewrite does not merge across partitions: "
            f"{fix}; {counted(before, 'file')} would become {after:,}, in {counted(self.partitions[1], 'partition')} "
            f"with a median size of {human_bytes(self.median[1])}"
        )

    def command(self, table: str) -> str:
        """The commands that evolve the spec and rewrite the files."""
        alter = [f'floeplan sql "ALTER TABLE {table} {change}"' for change in self.changes]
        return " && ".join([*alter, f"floeplan rewrite {table} --spec current"])


def coarser_spec(metadata: TableMetadata, union: UnionPartitionType, entries: EntriesTable) -> CoarserSpec | None:
    """The finest coarser spec whose median partition is not far below the target size; ``None`` if the current is fine.

    Args:
        metadata: The table's metadata.
        union: Its partition fields.
        entries: Its live data files.
    """
    of_spec = entries.filter(entries.spec_id == metadata.default_spec_id)
    fields = [field for field in union.spec(metadata.default_spec_id).fields if not field.is_void]
    if not len(of_spec) or not fields or any(field.obstacle for field in fields):
        return None
    target = FileSizes.of(RewriteOptions(), metadata.properties).target
    codes = partition_codes(union, of_spec.spec_id, of_spec.partition_columns())
    sizes = np.bincount(codes, weights=of_spec.ints("file_size_in_bytes"))
    if len(sizes) < MANY_PARTITIONS or np.median(sizes) * FAR_BELOW >= target:
        return None
    first = np.unique(codes, return_index=True)[1]
    before: list[_Part] = []
    for field, name in zip(fields, _sources(metadata, fields), strict=True):
        column = of_spec.partition_columns()[field.column.field_id].take(pa.array(first))
        before.append(_Part(field, name, field.transform, _numbers(column)))
    parts, grouped = before, sizes
    while parts and np.median(grouped) * FAR_BELOW < target:
        parts = max(_steps(parts), key=lambda some: len(_grouped(some, sizes)))
        grouped = _grouped(parts, sizes)
    return CoarserSpec(
        terms=tuple(part.term for part in parts),
        changes=tuple(_changes(before, parts)),
        partitions=(len(sizes), len(grouped)),
        files=(len(of_spec), int(np.maximum(1, np.ceil(grouped / target)).sum())),
        median=(int(np.median(sizes)), int(np.median(grouped))),
        target=target,
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """A partition field with its current transform, and its value in every partition."""

    field: BoundField
    source: tuple[str, ...]
    transform: Transform
    values: Ints

    @property
    def term(self) -> Term:
        """The transform of the source column."""
        return Term(self.source, self.transform)


def _sources(metadata: TableMetadata, fields: Sequence[BoundField]) -> Iterator[tuple[str, ...]]:
    schema = metadata.schema()
    for field in fields:
        yield tuple((schema.find_column_name(field.source_id) or "").split("."))


def _numbers(column: pa.Array) -> Ints:
    """Integers as they are, other values numbered; null is ``_NULL``."""
    if not pa.types.is_integer(column.type):
        column = column.dictionary_encode().indices
    return np.asarray(column.cast(pa.int64()).fill_null(_NULL).to_numpy(zero_copy_only=False))


def _steps(parts: list[_Part]) -> Iterator[list[_Part]]:
    """The specs that are one step coarser: a wider transform, or one field less when none can be widened."""
    wider = [(at, _wider(part)) for at, part in enumerate(parts)]
    if any(part is not None for _, part in wider):
        yield from ([*parts[:at], part, *parts[at + 1 :]] for at, part in wider if part is not None)
    else:
        yield from ([*parts[:at], *parts[at + 1 :]] for at in range(len(parts)))


def _wider(part: _Part) -> _Part | None:
    """The field with the next wider transform, whose values follow from those of this one."""
    known = part.values != _NULL
    match part.transform:
        case pt.BucketTransform(num_buckets=n) if n % 2 == 0 and n > 2:
            halved: Transform = pt.BucketTransform(n // 2)
            return replace(part, transform=halved, values=np.where(known, part.values % (n // 2), _NULL))
        case pt.HourTransform():
            wide: Transform = pt.DayTransform()
        case pt.DayTransform():
            wide = pt.MonthTransform()
        case pt.IdentityTransform() if isinstance(part.field.source_type, DateType):
            wide = pt.MonthTransform()
        case pt.MonthTransform():
            wide = pt.YearTransform()
        case _:
            return None
    times = np.where(known, part.values, 0).astype(f"datetime64[{_UNITS.get(type(part.transform), 'D')}]")
    values = times.astype(f"datetime64[{_UNITS[type(wide)]}]").astype(np.int64)
    return replace(part, transform=wide, values=np.where(known, values, _NULL))


def _grouped(parts: Sequence[_Part], sizes: Ints) -> Ints:
    """The bytes of each partition under these fields."""
    codes = np.zeros(len(sizes), dtype=np.int64)
    for part in parts:
        own = np.unique(part.values, return_inverse=True)[1]
        codes = np.unique(codes * (int(own.max(initial=0)) + 1) + own, return_inverse=True)[1]
    return np.asarray(np.bincount(codes, weights=sizes))


def _changes(before: Sequence[_Part], after: Sequence[_Part]) -> Iterator[str]:
    kept = {part.field.column.field_id: part.term.sql for part in after}
    for part in before:
        new = kept.get(part.field.column.field_id)
        if new is None:
            yield f"DROP PARTITION FIELD {part.term.sql}"
        elif new != part.term.sql:
            yield f"REPLACE PARTITION FIELD {part.term.sql} WITH {new}"
