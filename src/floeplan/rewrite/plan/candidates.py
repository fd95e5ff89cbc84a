"""Steps 3 and 4 of planning: which files are worth rewriting, and why.

A file is a candidate when it is smaller than the smallest or larger than the largest good size, when so many delete
files apply to it, when such a share of its rows is deleted, when it is to move to another spec, or when everything is
rewritten. The share counts deletes of that file alone (deletion vectors and position deletes that name one file), as
in Iceberg: what others delete of it is not known without reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, IntFlag, unique
from itertools import product

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from floeplan.errors import InvalidOptionError
from floeplan.metadata.delete_index import DeleteKind, DeleteMatches
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.predicate.stats import to_mask
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.snapshot.deletes import ScanDeletes

# Why a file is rewritten, and why it is not: every file that was considered has one or the other.


class Reason(IntFlag):
    """Why a file is a candidate; several may hold."""

    TOO_SMALL = 1
    TOO_LARGE = 2
    DELETES = 4
    DELETE_RATIO = 8
    SPEC_MIGRATION = 16
    REWRITE_ALL = 32


ENOUGH_ALONE = Reason.DELETES | Reason.DELETE_RATIO | Reason.SPEC_MIGRATION | Reason.REWRITE_ALL
"""Reasons for which a group is rewritten however few files it has."""

STILL_A_REASON = Reason.DELETES | Reason.DELETE_RATIO | Reason.SPEC_MIGRATION
"""Reasons to rewrite a file that the same run has made already."""


@unique
class Skip(IntEnum):
    """Why a file is left as it is."""

    NONE = 0
    OUTSIDE_FILTER = 1
    NO_MATCHING_ROWS = 2
    NOT_PARQUET = 3
    ENCRYPTED = 4
    NO_REASON = 5
    GROUP_TOO_SMALL = 6
    NO_FEWER_FILES = 7
    BEYOND_MAX_FILES = 8
    ALREADY_REWRITTEN = 9
    KEEPS_SPEC = 10


PRUNED_MANIFEST = "pruned-manifest"
"""Files whose manifest was not read because no partition in it can match: only their number is known."""


def label(reason: Reason | Skip) -> str:
    """The reason as documents and people name it."""
    return str(reason.name).lower().replace("_", "-")


def reason_counts(reasons: npt.NDArray[np.uint8]) -> dict[str, int]:
    """How many files each reason holds for; those that hold for none are left out."""
    counts = {label(reason): int(np.count_nonzero(reasons & reason)) for reason in Reason}
    return {name: count for name, count in counts.items() if count}


def skip_counts(skips: npt.NDArray[np.int8]) -> dict[str, int]:
    """How many files are left for each reason, in the order in which reasons are looked at."""
    counts = np.bincount(skips, minlength=len(Skip)).tolist()
    return {label(skip): counts[skip] for skip in Skip if skip is not Skip.NONE and counts[skip]}


def decision_texts(reasons: npt.NDArray[np.uint8], skips: npt.NDArray[np.int8]) -> pa.Array:
    """What was decided of each file, as text: its reasons, or why it is left."""
    taken = [" ".join(label(r) for r, on in zip(Reason, bits, strict=True) if on) for bits in _bits()]
    texts = taken + [label(skip) for skip in Skip]
    codes = np.where(skips == Skip.NONE, reasons, len(taken) + skips.astype(np.int32)).astype(np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(texts))


def _bits() -> list[tuple[bool, ...]]:
    """Every combination of reasons, in the order of their numbers."""
    return [bits[::-1] for bits in product((False, True), repeat=len(Reason))]


# The sizes that decide about files: when one is too small or too large, and how many files some bytes become.
#
# The arithmetic is Iceberg's own, so that both tools agree about which files are good and how many there will be.


DEFAULT_TARGET_BYTES = 512 * 1024**2
_TARGET_PROPERTY = "write.target-file-size-bytes"
_MIN_RATIO, _MAX_RATIO = 0.75, 1.80
_OVERHEAD = 5 * 1024


@dataclass(frozen=True, slots=True)
class FileSizes:
    """The three sizes that decide about files, and how many files a number of bytes becomes."""

    target: int
    smallest: int
    largest: int

    @classmethod
    def of(cls, options: RewriteOptions, properties: Mapping[str, str]) -> FileSizes:
        """The sizes asked for, or those that follow from the table's target size."""
        target = options.target_file_size_bytes or int(properties.get(_TARGET_PROPERTY, DEFAULT_TARGET_BYTES))
        smallest, largest = options.min_file_size_bytes, options.max_file_size_bytes
        sizes = cls(
            target,
            int(target * _MIN_RATIO) if smallest is None else smallest,
            int(target * _MAX_RATIO) if largest is None else largest,
        )
        sizes._check()
        return sizes

    def _check(self) -> None:
        if self.target <= self.smallest:
            raise InvalidOptionError(
                f"'target-file-size-bytes' ({self.target}) must be > 'min-file-size-bytes' ({self.smallest}): "
                "all new files would be too small"
            )
        if self.target >= self.largest:
            raise InvalidOptionError(
                f"'target-file-size-bytes' ({self.target}) must be < 'max-file-size-bytes' ({self.largest}): "
                "all new files would be too large"
            )

    @property
    def write_max(self) -> int:
        """Where a file is closed while it is written: half way between the target and the largest size."""
        return int(self.target + (self.largest - self.target) * 0.5)

    def expected_outputs(self, input_bytes: int) -> int:
        """How many files so many bytes become: a remainder is a file of its own only if it would be a good one."""
        if input_bytes < self.target:
            return 1
        fewer, rest = divmod(input_bytes, self.target)
        if rest > self.smallest:
            return fewer + 1
        if input_bytes // fewer < min(1.1 * self.target, self.write_max):
            return fewer
        return -(-input_bytes // self.target)

    def split_size(self, input_bytes: int) -> int:
        """The size that cuts so many bytes into the expected number of files, with 5 KiB to spare for each."""
        estimate = input_bytes // self.expected_outputs(input_bytes) + _OVERHEAD
        return self.target if estimate < self.target else min(estimate, self.write_max)


# ---

_FILE_SCOPED = (DeleteKind.POSITION_FILE, DeleteKind.VECTOR)


@dataclass(frozen=True, slots=True)
class Selection:
    """Files after the filters, with their deletes, and for every entry its reasons or why it is left.

    ``rows`` are the entries that passed the filters: what ``considered`` and ``matches`` are about.
    """

    entries: EntriesTable
    considered: EntriesTable
    rows: npt.NDArray[np.int64]
    matches: DeleteMatches
    reasons: npt.NDArray[np.uint8]
    skip: npt.NDArray[np.int8]

    @property
    def candidates(self) -> npt.NDArray[np.int64]:
        """Entries that are candidates."""
        return np.flatnonzero(self.reasons)


def unreadable(entries: EntriesTable) -> npt.NDArray[np.int8]:
    """A ``Skip`` for every file that cannot be read at all: it stays as it is."""
    parquet = to_mask(pc.equal(entries.array("file_format"), "PARQUET"))
    skip = np.where(parquet, Skip.NONE, Skip.NOT_PARQUET).astype(np.int8)
    skip[parquet & entries.valid("key_metadata")] = Skip.ENCRYPTED
    return skip


def candidate_reasons(
    entries: EntriesTable,
    deletes: ScanDeletes,
    matches: DeleteMatches,
    options: RewriteOptions,
    sizes: FileSizes,
    output_spec_id: int | None,
) -> npt.NDArray[np.uint8]:
    """The reasons (bits of ``Reason``) for which each file is a candidate; none for a file that is good as it is."""
    size = entries.ints("file_size_in_bytes")
    holds = {
        Reason.TOO_SMALL: size < sizes.smallest,
        Reason.TOO_LARGE: size > sizes.largest,
        Reason.DELETES: matches.counts >= options.delete_file_threshold,
        Reason.DELETE_RATIO: delete_ratio(entries, deletes, matches) >= options.delete_ratio_threshold,
        Reason.SPEC_MIGRATION: (entries.spec_id != output_spec_id) & (output_spec_id is not None),
        Reason.REWRITE_ALL: np.full(len(entries), options.rewrite_all),
    }
    reasons = np.zeros(len(entries), dtype=np.uint8)
    for reason, where in holds.items():
        reasons[where] |= np.uint8(reason)
    return reasons


def delete_ratio(entries: EntriesTable, deletes: ScanDeletes, matches: DeleteMatches) -> npt.NDArray[np.float64]:
    """The share of the rows of each file that deletes of this file alone delete."""
    rows = entries.record_count
    data_rows = np.repeat(np.arange(len(entries)), matches.counts)
    scoped = np.isin(deletes.kinds[matches.deletes], _FILE_SCOPED)
    records = deletes.entries.record_count[matches.deletes[scoped]]
    deleted = np.bincount(data_rows[scoped], records, minlength=len(entries))
    return np.asarray(np.minimum(deleted, rows) / np.maximum(rows, 1))
