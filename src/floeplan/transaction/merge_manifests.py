"""Merging small manifests during a commit, as the ``commit.manifest.*`` properties configure.

Rule: manifests of one content and spec are packed into bins of the target size, oldest first. The bin of the newest
manifest is merged when it has ``min-count-to-merge`` manifests; any other bin of two or more is full and due at once. A
commit merges at most one bin per content and spec, so it reads and writes at most the target size for each.

Fail-safe: entries keep their snapshot ids and sequence numbers; files that this snapshot adds stay ADDED.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from floeplan.errors import InvalidOptionError
from floeplan.metadata.manifests.entries import WHOLE, EntriesTable, EntryColumns
from floeplan.metadata.manifests.manifest_list import ManifestListTable, concat_manifest_lists
from floeplan.metadata.manifests.new_entries import carried_over, concat_entries
from floeplan.metadata.manifests.reader import read_entries
from floeplan.text import parse_count
from floeplan.transaction.manifests import SnapshotManifests, TableShape
from floeplan.vectors import Ints


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """The table properties ``commit.manifest.target-size-bytes``, ``min-count-to-merge`` and ``-merge.enabled``."""

    target_bytes: int = 8 * 1024 * 1024
    min_count: int = 100
    enabled: bool = True

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> MergeOptions:
        """The options of a table."""
        usual = cls()
        return cls(
            _positive(properties, "commit.manifest.target-size-bytes", usual.target_bytes),
            _positive(properties, "commit.manifest.min-count-to-merge", usual.min_count),
            properties.get("commit.manifest-merge.enabled", "true").lower() == "true",
        )


@dataclass(slots=True)
class ManifestMerger:
    """Merges manifests; results are kept, because the snapshot may be produced again on a newer head."""

    writer: SnapshotManifests
    _merged: dict[tuple[object, ...], ManifestListTable] = field(default_factory=dict)

    def merge(self, manifests: ManifestListTable, shape: TableShape, options: MergeOptions) -> ManifestListTable:
        """The manifests, newest first, with the due bin of each content and spec merged."""
        result, order = [manifests], np.arange(len(manifests))
        for spec_id, content in sorted(set(zip(manifests.spec_id.tolist(), manifests.content.tolist(), strict=True))):
            rows = np.flatnonzero((manifests.spec_id == spec_id) & (manifests.content == content))
            due = due_bin(manifests.length[rows], options)
            if due is not None:
                bin_rows = rows[due]
                order[bin_rows[0]] = len(manifests) + len(result) - 1
                order[bin_rows[1:]] = -1
                result.append(self._merge(manifests.take(bin_rows), spec_id, content, shape))
        return manifests if len(result) == 1 else concat_manifest_lists(result).take(order[order >= 0])

    def _merge(self, sources: ManifestListTable, spec_id: int, content: int, shape: TableShape) -> ManifestListTable:
        key = shape.key, *sources.path.to_pylist()
        if key not in self._merged:
            entries = self._entries(sources, shape)
            nothing = np.zeros(len(entries), dtype=np.bool_)
            carried = carried_over(entries, nothing, self.writer.snapshot_id)
            self._merged[key] = self.writer.write_manifest_for_spec(carried, spec_id, shape, content)
        return self._merged[key]

    def _entries(self, sources: ManifestListTable, shape: TableShape) -> EntriesTable:
        """Entries of older manifests are read; those of this snapshot are in memory."""
        written = self.writer.written
        own = {row: written[path] for row, path in enumerate(sources.path.to_pylist()) if path in written}
        others = np.setdiff1d(np.arange(len(sources)), list(own))
        read = read_entries(sources, shape.union, EntryColumns(WHOLE), rows=others, io=self.writer.io)
        return concat_entries([*own.values(), read], shape.union)


def due_bin(lengths: Ints, options: MergeOptions) -> slice | None:
    """The manifests of one content and spec, newest first, to merge now."""
    bins = pack_from_the_end(lengths, options.target_bytes)
    newest, full = bins[0], [other for other in bins[1:] if other.stop - other.start > 1]
    if newest.stop - newest.start >= max(2, options.min_count):
        return newest
    return full[-1] if full else None


def pack_from_the_end(lengths: Ints, target_bytes: int) -> list[slice]:
    """Pack manifests into bins of at most the target size, filled from the oldest; in the order of the list."""
    ends = np.cumsum(lengths[::-1])
    count, start, runs = len(lengths), 0, []
    while start < count:
        limit = target_bytes + (int(ends[start - 1]) if start else 0)
        stop = max(start + 1, int(np.searchsorted(ends, limit, side="right")))
        runs.append(slice(count - stop, count - start))
        start = stop
    return runs[::-1]


def _positive(properties: Mapping[str, str], name: str, default: int) -> int:
    text = properties.get(name, str(default))
    number = parse_count(text)
    if not number:
        raise InvalidOptionError(
            f"table property {name} is {text!r}: set it to a whole number above 0", context={"property": name}
        )
    return number
