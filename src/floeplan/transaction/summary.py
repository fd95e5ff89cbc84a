"""The snapshot summary, with the property names of Iceberg Java.

Rule: zero counts are left out, except those of changed partitions and manifests; totals are the parent's plus what was
added minus what was removed. Fail-safe: a total that the parent lacks, or that would become negative, is left out;
without a parent, totals start at zero.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow.compute as pc

from floeplan.metadata.manifests.entries import Content, EntriesTable
from floeplan.metadata.manifests.new_entries import concat_entries
from floeplan.partition.key import partition_codes
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.stats import to_mask
from floeplan.text import parse_count
from floeplan.vectors import Ints, Mask

_COUNTED = {
    "files-size": ("added-files-size", "removed-files-size"),
    "data-files": ("added-data-files", "deleted-data-files"),
    "equality-delete-files": ("added-equality-delete-files", "removed-equality-delete-files"),
    "position-delete-files": ("added-position-delete-files", "removed-position-delete-files"),
    "dvs": ("added-dvs", "removed-dvs"),
    "delete-files": ("added-delete-files", "removed-delete-files"),
    "records": ("added-records", "deleted-records"),
    "position-deletes": ("added-position-deletes", "removed-position-deletes"),
    "equality-deletes": ("added-equality-deletes", "removed-equality-deletes"),
}
"""The property names of added and removed counts."""

_TOTALS = ("records", "files-size", "data-files", "delete-files", "position-deletes", "equality-deletes")


def changes(added: EntriesTable, removed: EntriesTable, union: UnionPartitionType) -> dict[str, str]:
    """Counts of added and removed files and rows, and of changed partitions."""
    found: dict[str, str] = {}
    for side, entries in enumerate((added, removed)):
        found |= {_COUNTED[what][side]: str(number) for what, number in _counts(entries).items() if number > 0}
    both = concat_entries([added, removed], union)
    codes = partition_codes(union, both.spec_id, both.partition_columns())
    return found | {"changed-partition-count": str(len(np.unique(codes)))}


def manifest_counts(created: int, kept: int, replaced: int) -> dict[str, str]:
    """Counts of new manifests, kept manifests, and manifests of the parent that were replaced."""
    counts = {"manifests-created": created, "manifests-kept": kept, "manifests-replaced": replaced}
    return {name: str(count) for name, count in counts.items()}


def totals(changed: Mapping[str, str], parent: Mapping[str, str] | None) -> dict[str, str]:
    """Totals after a change; ``parent`` is the parent's summary, ``None`` without a parent."""
    found = {}
    for what in _TOTALS:
        name = f"total-{what}"
        before = 0 if parent is None else parse_count(parent.get(name))
        if before is not None:
            added, removed = (int(changed.get(side, 0)) for side in _COUNTED[what])
            if before + added >= removed:
                found[name] = str(before + added - removed)
    return found


def _counts(entries: EntriesTable) -> dict[str, int]:
    content, records = entries.content, entries.record_count
    is_data, is_equality = content == Content.DATA, content == Content.EQUALITY_DELETES
    is_position = content == Content.POSITION_DELETES
    is_vector = is_position & to_mask(pc.equal(entries.array("file_format"), "PUFFIN"))
    return {
        "files-size": int(_sizes(entries, is_vector).sum()),
        "data-files": _count(is_data),
        "equality-delete-files": _count(is_equality),
        "position-delete-files": _count(is_position & ~is_vector),
        "dvs": _count(is_vector),
        "delete-files": _count(~is_data),
        "records": int(records[is_data].sum()),
        "position-deletes": int(records[is_position].sum()),
        "equality-deletes": int(records[is_equality].sum()),
    }


def _sizes(entries: EntriesTable, is_vector: Mask) -> Ints:
    """File sizes; deletion vectors share a file, so each counts its own bytes."""
    whole = entries.ints("file_size_in_bytes")
    return np.where(is_vector, entries.ints("content_size_in_bytes", missing=0), whole)


def _count(mask: Mask) -> int:
    return int(np.count_nonzero(mask))
