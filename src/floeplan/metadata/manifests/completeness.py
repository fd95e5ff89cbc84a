"""Detects truncated manifests and manifest lists: an Avro file cut between two blocks reads as a valid shorter file.

==============  ================================================================  ======================================
file            evidence                                                          conclusion
==============  ================================================================  ======================================
manifest        its length in the manifest list                                   equal length: complete
manifest        its counts in the manifest list: live files and their rows        other length, equal counts: complete
manifest list   the number of manifests in the header, which Floeplan writes      fewer manifests: truncated
manifest list   ``total-data-files``, ``total-delete-files`` of the snapshot      fewer files: possibly truncated
==============  ================================================================  ======================================

Rule: a manifest is complete when its length or its counts prove it. Some writers get one of the two wrong: Iceberg's
``rewrite_table_path`` keeps the lengths of the original files, and some writers count one file per manifest.
Fail-safe: a manifest that neither proves complete is an error. Snapshot totals are a running sum that one wrong commit
spoils for good, so scans only warn about them; operations that delete files or write rows refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from pyiceberg.table.snapshots import Snapshot

from floeplan.errors import CorruptMetadataError
from floeplan.metadata.avro.container import corrupt
from floeplan.metadata.avro.decoder import RawColumn
from floeplan.metadata.manifests.entries import Status
from floeplan.metadata.manifests.manifest_list import DATA, DELETES, ManifestListTable
from floeplan.text import counted, parse_count
from floeplan.vectors import Ints, Mask

_TOTALS = ((DATA, "total-data-files", "data file"), (DELETES, "total-delete-files", "delete file"))


def check_manifests(
    manifests: ManifestListTable, rows: Ints, sizes: Ints, counts: Ints, raw: Mapping[str, RawColumn], *, live: bool
) -> None:
    """Refuse manifests that may be truncated.

    Args:
        manifests: The manifest list.
        rows: The rows of the manifests that were read.
        sizes: Their lengths in bytes.
        counts: The number of entries read from each.
        raw: The columns of these entries, one manifest after the other.
        live: Whether DELETED entries were left out.

    Raises:
        CorruptMetadataError: Neither the length nor the counts in the list prove a manifest complete.
    """
    recorded = manifests.length[rows]
    differs = sizes != recorded
    if not differs.any():
        return

    ends = np.cumsum(counts)

    def per_manifest(values: Ints | Mask) -> Ints:
        running = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
        return np.asarray(running[ends] - running[ends - counts])

    def listed(*names: str) -> Ints:
        """The sum of these counts of the list; -1 where one was not written."""
        parts = np.stack([getattr(manifests, name)[rows] for name in names])
        return np.where((parts < 0).any(axis=0), -1, parts.sum(axis=0))

    files = records = np.zeros_like(counts)
    if "status" in raw and "record_count" in raw:
        alive = raw["status"].values != Status.DELETED
        files, records = per_manifest(alive), per_manifest(np.where(alive, raw["record_count"].values, 0))
    complete = files == listed("added_files", "existing_files")
    complete &= records == listed("added_rows", "existing_rows")
    if not live:
        complete &= counts - files == listed("deleted_files")
    # A longer file than recorded is truncated only when files are missing from it.
    missing = files < listed("added_files", "existing_files")
    truncated = differs & np.where(sizes < recorded, ~complete, missing)
    if truncated.any():
        at = int(np.argmax(truncated))
        path = str(manifests.path[int(rows[at])].as_py())
        expected = f"the manifest list says it has {counted(int(recorded[at]), 'byte')}, and more files or rows"
        raise corrupt(path, int(sizes[at]), f"the file ends here, {expected}")


@dataclass(frozen=True, slots=True)
class TruncatedList:
    """A manifest list with fewer files than the summary of its snapshot counts: it is probably truncated."""

    manifest_list: str
    noun: str
    listed: int
    total: int

    @property
    def message(self) -> str:
        """What is missing and what the cause may be."""
        return (
            f"{self.manifest_list} has {self.listed:,} of the {counted(self.total, self.noun)} that the snapshot "
            "summary counts: the file is truncated, or a writer recorded a wrong total"
        )

    def error(self, risk: str) -> CorruptMetadataError:
        """The refusal to go on with this list; ``risk`` names what going on could do."""
        return CorruptMetadataError(
            f"{self.message}; {risk}: restore the manifest list, or pass --trust-lists to go on with it",
            context=self.to_dict(),
        )

    def to_dict(self) -> dict[str, str | int]:
        """For contexts of errors and warnings."""
        return {"file": self.manifest_list, "what": f"{self.noun}s", "listed": self.listed, "total": self.total}


def find_truncation(snapshot: Snapshot, manifests: ManifestListTable) -> TruncatedList | None:
    """Compare the files of a manifest list with the totals of the snapshot summary, where both are written."""
    summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
    for content, name, noun in _TOTALS:
        total = parse_count(summary.get(name))
        if total is None:
            continue
        of_content = manifests.content == content
        added, existing = manifests.added_files[of_content], manifests.existing_files[of_content]
        if (added < 0).any() or (existing < 0).any():
            continue
        listed = int(added.sum()) + int(existing.sum())
        if listed < total:
            return TruncatedList(snapshot.manifest_list, noun, listed, total)
    return None
