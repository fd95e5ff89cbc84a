"""Steps 3 to 5 of planning: which files are worth rewriting, and why; file sizes; the partition files go to.

A file is a candidate when it is smaller than ``min-file-size-bytes`` or larger than ``max-file-size-bytes``, when at
least ``delete-file-threshold`` delete files apply to it, when at least ``delete-ratio-threshold`` of its rows are
deleted, when it moves to another spec, or with ``rewrite-all``. As in Iceberg, the ratio counts file-scoped deletes
only (deletion vectors and position delete files that reference one file): how many rows other deletes remove is not
known without reading them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, IntFlag, unique
from itertools import product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import BucketTransform, VoidTransform
from pyiceberg.types import DateType, TimestampNanoType, TimestampType, TimestamptzNanoType, TimestamptzType

from floeplan.errors import InvalidOptionError
from floeplan.formats.stored import READABLE
from floeplan.metadata.delete_index import DeleteKind, DeleteMatches
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.metadata.manifests.stats import file_stats
from floeplan.metadata.manifests.values import partition_arrow_type
from floeplan.partition.fields import BoundField, transform_name
from floeplan.partition.key import partition_codes
from floeplan.partition.recover import Obstacle, Recovered, recover
from floeplan.partition.transforms import can_apply
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.ir import Column
from floeplan.predicate.stats import to_mask
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.schemas import fields_by_id
from floeplan.snapshot.passes import ScanDeletes
from floeplan.text import parse_count
from floeplan.vectors import Ints, Mask

ReasonBits: TypeAlias = npt.NDArray[np.uint8]
"""Per file the bits of ``Reason``."""
SkipCodes: TypeAlias = npt.NDArray[np.int8]
"""Per file a value of ``Skip``."""
DEFAULT_TARGET_BYTES = 512 * 1024**2
_TARGET_PROPERTY = "write.target-file-size-bytes"
_MIN_RATIO, _MAX_RATIO = 0.75, 1.80
_OVERHEAD = 5 * 1024
_READABLE_DELETES = (*READABLE, "PUFFIN")
_REPLACE = Operation.REPLACE
_TIME_TYPES = (DateType, TimestampType, TimestamptzType, TimestampNanoType, TimestamptzNanoType)


class Reason(IntFlag):
    """Why a file is a candidate; several may hold."""

    TOO_SMALL = 1
    TOO_LARGE = 2
    DELETES = 4
    DELETE_RATIO = 8
    SPEC_MIGRATION = 16
    REWRITE_ALL = 32


ENOUGH_ALONE = Reason.DELETES | Reason.DELETE_RATIO | Reason.SPEC_MIGRATION | Reason.REWRITE_ALL
"""Reasons for which a group is rewritten even if it has one file."""

REASONS_AFTER_REWRITE = Reason.DELETES | Reason.DELETE_RATIO | Reason.SPEC_MIGRATION
"""Reasons to rewrite a file that the same rewrite has already made."""


@unique
class Skip(IntEnum):
    """Why a file is not rewritten."""

    NONE = 0
    OUTSIDE_FILTER = 1
    NO_MATCHING_ROWS = 2
    UNKNOWN_FORMAT = 3
    ENCRYPTED = 4
    NO_REASON = 5
    GROUP_TOO_SMALL = 6
    NO_FEWER_FILES = 7
    BEYOND_MAX_FILES = 8
    ALREADY_REWRITTEN = 9
    KEEPS_SPEC = 10
    UNREADABLE_DELETES = 11
    STILL_WRITTEN = 12


PRUNED_MANIFEST = "pruned-manifest"
"""Files in manifests that were not read because no partition in them can match; only their number is known."""


def label(reason: Reason | Skip) -> str:
    """The name in JSON and text."""
    return str(reason.name).lower().replace("_", "-")


def reason_counts(reasons: ReasonBits) -> dict[str, int]:
    """How many files have each reason; reasons without files are omitted."""
    counts = {label(reason): int(np.count_nonzero(reasons & reason)) for reason in Reason}
    return {name: count for name, count in counts.items() if count}


def skip_counts(skips: SkipCodes) -> dict[str, int]:
    """How many files are skipped for each reason."""
    counts = np.bincount(skips, minlength=len(Skip)).tolist()
    return {label(skip): counts[skip] for skip in Skip if skip is not Skip.NONE and counts[skip]}


def decision_texts(reasons: ReasonBits, skips: SkipCodes) -> pa.Array:
    """The decision about each file as text: its reasons, or why it is skipped."""
    # Every combination of reasons, in the order of their numbers.
    combinations = [bits[::-1] for bits in product((False, True), repeat=len(Reason))]
    taken = [" ".join(label(r) for r, on in zip(Reason, bits, strict=True) if on) for bits in combinations]
    texts = taken + [label(skip) for skip in Skip]
    codes = np.where(skips == Skip.NONE, reasons, len(taken) + skips.astype(np.int32)).astype(np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(texts))


def _target_of(properties: Mapping[str, str]) -> int:
    text = properties.get(_TARGET_PROPERTY)
    target = DEFAULT_TARGET_BYTES if text is None else parse_count(text.strip())
    if not target:
        raise InvalidOptionError(
            f"table property {_TARGET_PROPERTY} is set to {text!r}, but must be a whole number above 0",
            context={"property": _TARGET_PROPERTY, "value": text},
        )
    return target


@dataclass(frozen=True, slots=True)
class FileSizes:
    """Target, minimum and maximum file size, and how many files a number of bytes becomes.

    The arithmetic is that of Iceberg's ``SizeBasedFileRewritePlanner``, so that both choose the same files and expect
    the same number of new ones.
    """

    target: int
    smallest: int
    largest: int

    @classmethod
    def of(cls, options: RewriteOptions, properties: Mapping[str, str]) -> FileSizes:
        """The sizes of the options; by default they follow from the table's target file size."""
        target = options.target_file_size_bytes or _target_of(properties)
        smallest, largest = options.min_file_size_bytes, options.max_file_size_bytes
        sizes = cls(
            target,
            int(target * _MIN_RATIO) if smallest is None else smallest,
            int(target * _MAX_RATIO) if largest is None else largest,
        )
        if sizes.target <= sizes.smallest:
            raise InvalidOptionError(
                f"'target-file-size-bytes' ({sizes.target}) must be > 'min-file-size-bytes' ({sizes.smallest}): "
                "all new files would be too small"
            )
        if sizes.target >= sizes.largest:
            raise InvalidOptionError(
                f"'target-file-size-bytes' ({sizes.target}) must be < 'max-file-size-bytes' ({sizes.largest}): "
                "all new files would be too large"
            )
        return sizes

    @property
    def write_max(self) -> int:
        """The size at which a writer closes a file: half way between target and maximum."""
        return int(self.target + (self.largest - self.target) * 0.5)

    def expected_outputs(self, input_bytes: int) -> int:
        """How many files a number of bytes becomes; a remainder is a separate file only if it is large enough."""
        if input_bytes < self.target:
            return 1
        fewer, rest = divmod(input_bytes, self.target)
        if rest > self.smallest:
            return fewer + 1
        if input_bytes // fewer < min(1.1 * self.target, self.write_max):
            return fewer
        return -(-input_bytes // self.target)

    def split_size(self, input_bytes: int) -> int:
        """The size that splits bytes into the expected number of files, with 5 KiB overhead for each."""
        estimate = input_bytes // self.expected_outputs(input_bytes) + _OVERHEAD
        return self.target if estimate < self.target else min(estimate, self.write_max)


@dataclass(frozen=True, slots=True)
class Selection:
    """Every entry with its reasons or why it is skipped, and the deletes of those that passed the filters.

    Attributes:
        entries: All entries that were read.
        considered: Those that passed the filters.
        rows: The rows of these in ``entries``.
        matches: The delete files that apply to each of ``considered``.
        reasons: Per entry the reasons to rewrite it.
        skip: Per entry why it is not rewritten.
    """

    entries: EntriesTable
    considered: EntriesTable
    rows: Ints
    matches: DeleteMatches
    reasons: ReasonBits
    skip: SkipCodes

    @property
    def candidates(self) -> Ints:
        """The rows of ``entries`` that are candidates."""
        return np.flatnonzero(self.reasons)


def skip_unreadable(entries: EntriesTable, skip: SkipCodes) -> SkipCodes:
    """Skip files that cannot be read at all, besides those that are already skipped."""
    formats = entries.array("file_format")
    readable = to_mask(pc.is_in(formats, value_set=pa.array(READABLE, formats.type)))
    encrypted = np.where(entries.valid("key_metadata"), Skip.ENCRYPTED, Skip.NONE)
    return np.where(skip == Skip.NONE, np.where(readable, encrypted, Skip.UNKNOWN_FORMAT), skip).astype(np.int8)


def still_written(entries: EntriesTable, metadata: TableMetadata, union: UnionPartitionType, since_ms: int) -> Mask:
    """Files in partitions by time to which a snapshot after ``since_ms`` added files.

    Only a partition by time is ever complete: leaving others alone would leave them alone as long as the table is
    written. Snapshots that replace files without changing rows do not count.
    """
    recent = [
        snapshot.snapshot_id
        for snapshot in metadata.snapshots
        if snapshot.timestamp_ms > since_ms and (snapshot.summary is None or snapshot.summary.operation != _REPLACE)
    ]
    new = np.isin(entries.ints("snapshot_id"), recent) & np.isin(entries.spec_id, specs_by_time(metadata, union))
    if not new.any():
        return new
    codes = partition_codes(union, entries.spec_id, entries.partition_columns())
    return np.isin(codes, np.unique(codes[new]))


def specs_by_time(metadata: TableMetadata, union: UnionPartitionType) -> list[int]:
    """The specs that have a partition field by time."""
    return [spec_id for spec_id in metadata.specs() if any(map(_is_time, union.spec(spec_id).fields))]


def _is_time(field: BoundField) -> bool:
    return isinstance(field.source_type, _TIME_TYPES) and not isinstance(
        field.transform, BucketTransform | VoidTransform
    )


def unreadable_deletes(deletes: ScanDeletes, matches: DeleteMatches) -> Mask:
    """Whether a delete file that cannot be read applies to each file: its rows cannot be rewritten without it."""
    formats = deletes.entries.array("file_format")
    unreadable = deletes.entries.valid("key_metadata")
    unreadable |= ~to_mask(pc.is_in(formats, value_set=pa.array(_READABLE_DELETES, formats.type)))
    return np.bincount(matches.data_rows[unreadable[matches.deletes]], minlength=len(matches.counts)) > 0


def candidate_reasons(
    entries: EntriesTable,
    deletes: ScanDeletes,
    matches: DeleteMatches,
    options: RewriteOptions,
    sizes: FileSizes,
    output_spec_id: int | None,
) -> ReasonBits:
    """The reasons for which each file is a candidate; none for a file that is already well-sized."""
    size, rows = entries.ints("file_size_in_bytes"), entries.record_count
    # The fraction of the rows of each file that its file-scoped deletes remove.
    scoped = np.isin(deletes.kinds[matches.deletes], (DeleteKind.POSITION_FILE, DeleteKind.VECTOR))
    records = deletes.entries.record_count[matches.deletes[scoped]]
    deleted = np.bincount(matches.data_rows[scoped], records, minlength=len(entries))
    delete_ratio = np.minimum(deleted, rows) / np.maximum(rows, 1)
    holds = {
        Reason.TOO_SMALL: size < sizes.smallest,
        Reason.TOO_LARGE: size > sizes.largest,
        Reason.DELETES: matches.counts >= options.delete_file_threshold,
        Reason.DELETE_RATIO: delete_ratio >= options.delete_ratio_threshold,
        Reason.SPEC_MIGRATION: (entries.spec_id != output_spec_id) & (output_spec_id is not None),
        Reason.REWRITE_ALL: np.full(len(entries), options.rewrite_all),
    }
    reasons = np.zeros(len(entries), dtype=np.uint8)
    for reason, where in holds.items():
        reasons[where] |= np.uint8(reason)
    return reasons


@dataclass(frozen=True, slots=True)
class OutputPartitions:
    """The partition that the rows of each file will be in after a rewrite, where metadata proves it.

    A file that keeps its spec keeps its partition. A file that moves to another spec has a proven partition there when
    every field of that spec is also a field of its own spec, or can be recovered from its column bounds. Files of
    several old specs are then packed together without being read.

    Fail-safe: a partition that is not proven is computed from the rows. Such files are sorted by the lowest partition
    value that their bounds admit, and packed together.

    Attributes:
        spec_id: The output spec where the partition is proven, else the file's own.
        columns: By union field id, the partition values under that spec.
        obstacle: Why the first unproven field cannot be recovered, as a value of ``Obstacle``.
        lowest: Per field of the output spec, the lowest value of each file as far as known, to sort unproven files by.
    """

    spec_id: Ints
    columns: Mapping[int, pa.Array]
    obstacle: npt.NDArray[np.int8]
    lowest: tuple[pa.Array, ...] = ()

    @property
    def proven(self) -> Mask:
        """Whether the output partition is known."""
        return np.asarray(self.obstacle == Obstacle.NONE)


def output_partitions(entries: EntriesTable, union: UnionPartitionType, output_spec_id: int | None) -> OutputPartitions:
    """Compute the output partitions; the entries must have the bounds of ``needed_stats``."""
    own, columns = entries.spec_id, entries.partition_columns()
    if output_spec_id is None or (own == output_spec_id).all():
        return OutputPartitions(own, columns, np.zeros(len(entries), dtype=np.int8))
    fields = [field for field in union.fields if output_spec_id in field.positions]
    found, has_own = dict[int, Recovered](), dict[int, Mask]()
    moving = own != output_spec_id
    obstacle = np.zeros(len(entries), dtype=np.int8)
    for field in fields:
        source = Column(field.bound.source_id, field.bound.source_type, (str(field.bound.source_id),))
        stats = file_stats(entries, [source]).columns.get(source.field_id)
        recovered = found[field.id] = recover(field.bound, stats, len(entries))
        has_own[field.id] = np.isin(own, list(field.positions))
        unproven = moving & ~has_own[field.id] & (obstacle == Obstacle.NONE)
        obstacle[unproven] = recovered.obstacle[unproven]
    proven = np.asarray(obstacle == Obstacle.NONE)
    filled = dict(columns)
    lowest = list[pa.Array]()
    for field in fields:
        recovered, type_ = found[field.id], partition_arrow_type(field.bound.column.type)
        # Recovered values for files that move and do not have the field.
        where = moving & proven & ~has_own[field.id]
        if where.any():
            if isinstance(recovered.values, np.ndarray):
                values = pa.array(recovered.values, mask=recovered.is_null | ~where)
            else:
                null = pa.scalar(None, recovered.values.type)
                values = pc.if_else(pa.array(where & ~recovered.is_null), recovered.values, null)
            filled[field.id] = pc.if_else(pa.array(where), values.cast(type_), columns[field.id].cast(type_))
        # To sort by: the value of a file that has the field, else that of its lower bound, if there is one. Files whose
        # values do not fit the type of the field are not sorted: the type is unknown if the source column was dropped.
        try:
            values = pa.array(recovered.values).cast(type_)
            lowest.append(pc.if_else(pa.array(has_own[field.id]), columns[field.id].cast(type_), values))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            lowest.append(pa.nulls(len(entries), pa.int8()))
    return OutputPartitions(np.where(proven, output_spec_id, own), filled, obstacle, tuple(lowest))


def check_writable(union: UnionPartitionType, schema: Schema, output_spec_id: int | None) -> None:
    """Refuse a spec with a dropped source column or an unknown transform: rows cannot be partitioned by it."""
    for field in () if output_spec_id is None else union.spec(output_spec_id).fields:
        gone = field.source_id not in fields_by_id(schema)
        if not field.is_void and (gone or not can_apply(field.transform, field.source_type)):
            why = "its source column was dropped" if gone else f"{transform_name(field.transform)} cannot be computed"
            raise InvalidOptionError(
                f"files cannot be moved to spec {output_spec_id}, partition field {field.column}: {why}",
                context={"spec-id": output_spec_id, "field": str(field.column)},
            )


def needed_stats(union: UnionPartitionType, output_spec_id: int | None) -> frozenset[int]:
    """The columns whose bounds recover partition values of the output spec."""
    return frozenset(field.bound.source_id for field in union.fields if output_spec_id in field.positions)
