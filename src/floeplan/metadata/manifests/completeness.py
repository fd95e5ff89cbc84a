"""Whether manifests and manifest lists are whole: cut between two blocks, an Avro file reads as a shorter one.

==============  ================================================================  ====================================
file            witness                                                           believed
==============  ================================================================  ====================================
manifest        its length in the list                                            as many bytes are there: whole
manifest        its counts in the list: all live files, and all their rows        fewer bytes, but nothing is missing
manifest list   the number of manifests in the header; Floeplan writes it there   fewer are there: cut
manifest list   ``total-data-files``, ``total-delete-files`` of the snapshot      fewer are listed: perhaps cut
==============  ================================================================  ====================================

Rule: a manifest is whole when its length or its counts say so. Writers exist that get one of the two wrong: tables
whose paths were rewritten by Iceberg's procedure keep the lengths of other files, and some writers count one file per
manifest. Fail-safe: without a witness for it a manifest is damaged. Totals are a running sum that one bad commit spoils
for ever, so a reader is warned only; what removes files refuses, because that cannot be made good.
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


@dataclass(frozen=True, slots=True)
class ReadManifests:
    """Manifests that were read: their rows in the list, their bytes, and their entries, deleted ones or not."""

    manifests: ManifestListTable
    rows: Ints
    sizes: Ints
    counts: Ints
    live: bool

    def check(self, raw: Mapping[str, RawColumn]) -> None:
        """Refuse manifests that nothing says are whole; ``raw`` has the entries of all of them.

        Raises:
            CorruptMetadataError: A manifest is shorter than the list says, and does not have what the list counts.
        """
        recorded = self.manifests.length[self.rows]
        other = self.sizes != recorded
        if not other.any():
            return
        files, records = self._live(raw)
        missing = files < self._counted("added_files", "existing_files")
        cut = other & np.where(self.sizes < recorded, ~self._complete(files, records), missing)
        if cut.any():
            at = int(np.argmax(cut))
            path = str(self.manifests.path[int(self.rows[at])].as_py())
            what = f"the manifest list says it has {counted(int(recorded[at]), 'byte')}, and more files or rows"
            raise corrupt(path, int(self.sizes[at]), f"the file ends here, {what}")

    def _live(self, raw: Mapping[str, RawColumn]) -> tuple[Ints, Ints]:
        """Live files of each manifest, and their rows."""
        if "status" not in raw or "record_count" not in raw:
            return np.zeros_like(self.counts), np.zeros_like(self.counts)
        alive = raw["status"].values != Status.DELETED
        return self._sums(alive), self._sums(np.where(alive, raw["record_count"].values, 0))

    def _sums(self, values: Ints | Mask) -> Ints:
        until = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
        ends = np.cumsum(self.counts)
        return np.asarray(until[ends] - until[ends - self.counts])

    def _complete(self, files: Ints, records: Ints) -> Mask:
        complete: Mask = files == self._counted("added_files", "existing_files")
        complete &= records == self._counted("added_rows", "existing_rows")
        return complete if self.live else complete & (self.counts - files == self._counted("deleted_files"))

    def _counted(self, *names: str) -> Ints:
        """What the list counts; -1 where it does not say."""
        parts = np.stack([getattr(self.manifests, name)[self.rows] for name in names])
        return np.where((parts < 0).any(axis=0), -1, parts.sum(axis=0))


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
