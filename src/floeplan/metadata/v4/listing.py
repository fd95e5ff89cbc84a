"""The root of a metadata tree as a manifest list: ``list_root``.

The rows of the list are what a plan can skip:

- the data files in the root itself, and their deletion vectors,
- every leaf, and the deletion vectors of its files,
- every manifest of format 1 to 3 that the root refers to.

Fail-safe: a row of the root that would inherit, a reference without counts, to an encrypted manifest or to one of an
unknown format, two references to one manifest, and positions beyond a leaf are errors. Counts of a leaf never prove it
empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import IntEnum

import numpy as np
import pyarrow as pa

from floeplan.errors import CorruptMetadataError, UnsupportedError
from floeplan.format4 import resolve_all
from floeplan.metadata.manifests.manifest_list import DATA, DELETES, UNKNOWN, ManifestListTable, Summaries
from floeplan.metadata.v4 import fields as ids
from floeplan.metadata.v4.fields import ContentType, EntryStatus
from floeplan.metadata.v4.manifest_file import Rows
from floeplan.metadata.v4.mumbling import decode_positions
from floeplan.metadata.v4.row_entries import live_rows
from floeplan.vectors import Ints, Mask, arrow_binary

_TRACKING, _INFO = ids.TRACKING, ids.MANIFEST_INFO
LISTED = (
    *((_TRACKING, field_id) for field_id in (ids.STATUS, ids.SNAPSHOT_ID, ids.SEQUENCE_NUMBER, ids.FIRST_ROW_ID)),
    *((field_id,) for field_id in (ids.CONTENT_TYPE, ids.FILE_FORMAT_VERSION, ids.LOCATION, ids.RECORD_COUNT)),
    *((field_id,) for field_id in (ids.FILE_SIZE, ids.SPEC_ID, ids.KEY_METADATA, ids.COLUMN_FILES)),
    *((_INFO, field_id) for field_id in (*ids.FILE_COUNTS.values(), *ids.ROW_COUNTS.values())),
    *((_INFO, field_id) for field_id in (ids.MIN_SEQUENCE_NUMBER, ids.MANIFEST_DV)),
    (ids.DELETION_VECTOR, ids.DV_OFFSET),
)
"""What is read of every row of a root."""


class Kind(IntEnum):
    """What a row of the manifest list stands for."""

    INLINE = 0
    INLINE_VECTORS = 1
    LEAF = 2
    LEAF_VECTORS = 3
    OLDER = 4


@dataclass(frozen=True, slots=True)
class _Item:
    """A row of the list: the row of the root that it comes from (-1 for the root's own files), and its numbers."""

    kind: Kind
    row: int
    path: str
    numbers: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RootListing:
    """A root as a manifest list.

    Attributes:
        manifests: The list.
        kinds: What each row of it stands for.
        references: The row of the root for each; -1 for the root's own files.
        inline: Which rows of the root are live data files.
        removed: The positions removed from each leaf, by the row of the root that refers to it.
    """

    manifests: ManifestListTable
    kinds: list[Kind]
    references: list[int]
    inline: Mask
    removed: Mapping[int, Ints]


def list_root(rows: Rows, table_location: str) -> RootListing:
    """The manifest list of a root, from the columns ``LISTED`` of its rows."""
    status, content = rows.ints((_TRACKING, ids.STATUS)), rows.ints((ids.CONTENT_TYPE,))
    live = live_rows(status)
    inline = live & (content == ContentType.DATA)
    explicit = rows.valid((_TRACKING, ids.SNAPSHOT_ID)) & rows.valid((_TRACKING, ids.SEQUENCE_NUMBER))
    if (live & ~explicit).any():
        raise _corrupt(rows, "has a row without snapshot id or sequence number, which rows of a root do not inherit")
    items = list(_inline(rows, inline, status))
    removed: dict[int, Ints] = {}
    references = np.flatnonzero(live & ~inline)
    if len(references):
        items += _references(rows, references, table_location, removed)
    kinds, places = [item.kind for item in items], [item.row for item in items]
    return RootListing(_listed(items, table_location), kinds, places, inline, removed)


def _inline(rows: Rows, inline: Mask, status: Ints) -> Iterator[_Item]:
    """The data files in the root itself, and their deletion vectors."""
    if not inline.any():
        return
    added, records = inline & (status == EntryStatus.ADDED), rows.ints((ids.RECORD_COUNT,))
    specs = np.unique(rows.ints((ids.SPEC_ID,))[inline])
    numbers = {
        "content": DATA,
        "spec_id": int(specs[0]) if len(specs) == 1 else UNKNOWN,
        "added_files": int(added.sum()),
        "existing_files": int((inline & ~added).sum()),
        "added_rows": int(records[added].sum()),
        "existing_rows": int(records[inline & ~added].sum()),
    }
    yield _Item(Kind.INLINE, -1, rows.path, numbers)
    if rows.valid((ids.DELETION_VECTOR, ids.DV_OFFSET))[inline].any():
        yield _Item(Kind.INLINE_VECTORS, -1, rows.path, {"content": DELETES})


def _references(rows: Rows, references: Ints, table_location: str, removed: dict[int, Ints]) -> Iterator[_Item]:
    """The manifests that the root refers to; ``removed`` collects the positions that it removes from leaves."""
    names = resolve_all(table_location, rows.text((ids.LOCATION,)))
    vectors = rows.binary((_INFO, ids.MANIFEST_DV))
    has_info = rows.valid((_INFO, ids.MIN_SEQUENCE_NUMBER))
    if rows.valid((ids.KEY_METADATA,))[references].any():
        raise UnsupportedError(
            f"{rows.path} refers to encrypted manifests, which Floeplan does not read", context={"file": rows.path}
        )
    numbers = {
        "length": rows.ints((ids.FILE_SIZE,)),
        "spec_id": rows.ints((ids.SPEC_ID,)),
        "sequence_number": rows.ints((_TRACKING, ids.SEQUENCE_NUMBER)),
        "min_sequence_number": rows.ints((_INFO, ids.MIN_SEQUENCE_NUMBER), 0),
        "added_snapshot_id": rows.ints((_TRACKING, ids.SNAPSHOT_ID)),
        "first_row_id": rows.ints((_TRACKING, ids.FIRST_ROW_ID)),
        **{f"{n}_files": rows.ints((_INFO, i)) for n, i in ids.FILE_COUNTS.items() if n != "replaced"},
        **{f"{n}_rows": rows.ints((_INFO, i)) for n, i in ids.ROW_COUNTS.items() if n != "replaced"},
    }
    versions, contents = rows.ints((ids.FILE_FORMAT_VERSION,)), rows.ints((ids.CONTENT_TYPE,))
    records = rows.ints((ids.RECORD_COUNT,))
    seen: set[str] = set()
    for row in references.tolist():
        path = str(names[row].as_py())
        if path in seen:
            raise _corrupt(rows, f"refers to {path} twice: its files would be read twice")
        seen.add(path)
        if not has_info[row]:
            raise _corrupt(rows, f"refers to {path} without manifest_info")
        values = {name: int(column[row]) for name, column in numbers.items()}
        is_deletes = contents[row] == ContentType.DELETE_MANIFEST
        vector = None if vectors is None else vectors[row].as_py()
        if versions[row] == ids.OLDER_FORMAT:
            if vector is not None:
                raise _corrupt(rows, f"removes positions from {path}, a manifest of an older format")
            if values["spec_id"] < 0:
                raise _corrupt(rows, f"refers to {path} of an older format without its partition spec")
            yield _Item(Kind.OLDER, row, path, values | {"content": DELETES if is_deletes else DATA})
            continue
        if versions[row] != ids.FORMAT_VERSION or is_deletes:
            kind = "delete manifest" if is_deletes else "manifest"
            raise UnsupportedError(
                f"{rows.path} refers to {path}, a {kind} of format {int(versions[row])}, which is not supported",
                context={"file": path},
            )
        unknown = {name: UNKNOWN for name in values if name.endswith(("_files", "_rows"))}
        if vector is not None:
            removed[row] = _positions(rows, vector, path, int(records[row]))
            # Stored counts do not shrink; how many of the removed files they count is not known.
            rest = max(int(records[row]) - len(removed[row]), 1)
            values |= unknown | {"added_files": rest, "existing_files": 0}
        if values["added_files"] + values["existing_files"] == 0:
            values["added_files"] = UNKNOWN  # drafts disagree on where modified files are counted
        yield _Item(Kind.LEAF, row, path, values | {"content": DATA})
        yield _Item(Kind.LEAF_VECTORS, row, path, values | unknown | {"content": DELETES})


def _positions(rows: Rows, data: bytes, path: str, records: int) -> Ints:
    try:
        positions = decode_positions(data)
    except ValueError as error:
        raise _corrupt(rows, f"has a damaged deletion vector of {path}: {error}") from error
    if len(positions) and positions[-1] >= records:
        raise _corrupt(rows, f"removes position {int(positions[-1])} of {path}, which has {records} rows")
    return positions


def _corrupt(rows: Rows, why: str) -> CorruptMetadataError:
    return CorruptMetadataError(f"{rows.path} {why}", context={"file": rows.path})


def _listed(items: list[_Item], table_location: str) -> ManifestListTable:
    """The items as a manifest list; numbers that are not given are unknown."""
    empty = ManifestListTable.empty()
    names = [each.name for each in fields(empty) if isinstance(getattr(empty, each.name), np.ndarray)]
    numbers = {
        name: np.array([item.numbers.get(name, UNKNOWN) for item in items], dtype=np.int64)
        for name in names
        if name != "has_key_metadata"
    }
    return replace(
        empty,
        path=arrow_binary([item.path.encode() for item in items]).cast(pa.large_string()),
        has_key_metadata=np.zeros(len(items), dtype=np.bool_),
        summaries=Summaries.none(len(items)),
        table_location=table_location,
        **numbers,
    )
