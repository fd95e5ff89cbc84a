"""What entries inherit from their manifest, for all manifests at once.

- ``snapshot_id``: the manifest's where it is null.
- ``sequence_number``: the manifest's where it is null and the file was added, or where the manifest's is 0 (written
  before sequence numbers). Null on any other entry is damage: the file's age decides which deletes apply to it.
- ``file_sequence_number``: likewise, but older writers did not know it, so it may stay null.
- ``first_row_id``: in data manifests with one, files without get the next free number, counted over the files before
  them that have none either; deleted entries take no part. Without a manifest's first row id there is none.
"""

from __future__ import annotations

import numpy as np

from floeplan.errors import CorruptMetadataError
from floeplan.metadata.decoder import Ints, Mask, all_set
from floeplan.metadata.entries import Status
from floeplan.metadata.manifest_list import DATA, ManifestListTable

Nullable = tuple[Ints, Mask]
"""Values and where they are valid."""


def inherit_snapshot_id(own: Nullable, manifests: ManifestListTable, manifest: Ints) -> Nullable:
    """Snapshot that added or removed the file."""
    values, valid = own
    inherited = manifests.added_snapshot_id[manifest]
    return np.where(valid, values, inherited), valid | (inherited >= 0)


def inherit_sequence_number(own: Nullable, status: Ints, manifests: ManifestListTable, manifest: Ints) -> Nullable:
    """Data or file sequence number."""
    values, valid = own
    if all_set(valid):
        return own
    inherited = manifests.sequence_number[manifest]
    inherits = ~valid & ((inherited == 0) | (status == Status.ADDED))
    return np.where(inherits, inherited, values), valid | inherits


def check_sequence_numbers(valid: Mask, manifests: ManifestListTable, manifest: Ints) -> None:
    """Refuse entries that have no data sequence number and may not inherit one."""
    if all_set(valid):
        return
    path = manifests.path[int(manifest[np.argmin(valid)])].as_py()
    raise CorruptMetadataError(
        f"{path} has {int(np.count_nonzero(~valid))} entries of files that it did not add and that have no sequence "
        "number",
        context={"file": path},
    )


def inherit_first_row_id(
    own: Nullable, status: Ints, record_count: Ints, manifests: ManifestListTable, manifest: Ints, first_entry: Ints
) -> Nullable:
    """Id of the first row of each data file; ``first_entry`` is the row of the first entry of the same manifest."""
    values, valid = own
    start = np.where(manifests.content == DATA, manifests.first_row_id, -1)[manifest]
    assigned = start >= 0
    if not assigned.any():
        return values, np.zeros_like(valid)
    takes = assigned & ~valid & (status != Status.DELETED)
    rows = np.where(takes, record_count, 0)
    before = np.cumsum(rows) - rows
    return np.where(takes, start + before - before[first_entry], values), assigned & (valid | takes)
