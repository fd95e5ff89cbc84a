"""Steps 3 and 4 of planning: which files are worth rewriting, and why.

A file is a candidate when it is smaller than the smallest or larger than the largest good size, when so many delete
files apply to it, when such a share of its rows is deleted, when it is to move to another spec, or when everything is
rewritten. The share counts deletes of that file alone (deletion vectors and position deletes that name one file), as
in Iceberg: what others delete of it is not known without reading.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from floeplan.metadata.delete_index import DeleteKind, DeleteMatches
from floeplan.metadata.entries import EntriesTable
from floeplan.predicate.stats import to_mask
from floeplan.rewrite.options import RewriteOptions
from floeplan.rewrite.reasons import Reason, Skip
from floeplan.rewrite.sizes import FileSizes
from floeplan.scan.deletes import ScanDeletes

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
