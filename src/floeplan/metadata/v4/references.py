"""Rows of a root that refer to manifests: leaves with their statistics and removed positions, and older manifests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from floeplan.format4 import relative_paths
from floeplan.metadata.v4 import fields as ids
from floeplan.metadata.v4.fields import ContentType, EntryStatus
from floeplan.metadata.v4.mumbling import encode_positions
from floeplan.metadata.v4.stats import aggregate
from floeplan.metadata.v4.writer import ManifestLayout, cast, nulls_of
from floeplan.vectors import Ints


@dataclass(frozen=True, slots=True)
class Reference:
    """A row of a root that refers to a manifest.

    Attributes:
        location: The manifest.
        size: Its bytes.
        records: Its rows.
        status: A value of ``EntryStatus``.
        snapshot_id: The snapshot that added the manifest.
        sequence_number: Its sequence number.
        counts: Files and rows by stored status.
        min_sequence_number: The oldest data sequence number of its live files.
        first_row_id: Where the row ids of its files begin.
        content: A data or delete manifest.
        older: Whether it is a manifest of format 1 to 3; those have one spec.
        spec_id: That spec.
        stats: Its content statistics, as one row.
        removed: Positions of rows that are not live any more.
        dv_snapshot_id: The snapshot that changed them last.
        deleted: Those that the snapshot deleted.
        replaced: Those that the snapshot replaced.
    """

    location: str
    size: int
    records: int
    status: EntryStatus
    snapshot_id: int
    sequence_number: int
    counts: Mapping[str, tuple[int, int]]
    min_sequence_number: int
    first_row_id: int | None = None
    content: ContentType = ContentType.DATA_MANIFEST
    older: bool = False
    spec_id: int | None = None
    stats: pa.StructArray | None = None
    removed: Ints | None = None
    dv_snapshot_id: int | None = None
    deleted: Ints | None = None
    replaced: Ints | None = None


def leaf_reference(
    rows: pa.Table, location: str, size: int, snapshot_id: int, sequence_number: int, *, with_stats: bool = True
) -> Reference:
    """The reference to a leaf that a snapshot adds."""
    tracking, records = rows.column("tracking").combine_chunks(), rows.column("record_count").to_numpy()
    status = pc.struct_field(tracking, "status").to_numpy()
    # Without a first row id of its leaf a file has none, even if its row has one.
    sequence, first_rows = (
        pc.struct_field(tracking, name).drop_null().to_numpy() for name in ("sequence_number", "first_row_id")
    )
    of_status = {
        "added": status == EntryStatus.ADDED,
        "existing": (status == EntryStatus.EXISTING) | (status == EntryStatus.MODIFIED),
        "deleted": status == EntryStatus.DELETED,
        "replaced": status == EntryStatus.REPLACED,
    }
    stats = None
    if with_stats and "content_stats" in rows.column_names:
        stats = aggregate(rows.column("content_stats").combine_chunks(), records)
    return Reference(
        location=location,
        size=size,
        records=len(rows),
        status=EntryStatus.ADDED,
        snapshot_id=snapshot_id,
        sequence_number=sequence_number,
        counts={name: (int(mask.sum()), int(records[mask].sum())) for name, mask in of_status.items()},
        min_sequence_number=int(sequence.min()) if len(sequence) else sequence_number,
        first_row_id=int(first_rows.min()) if len(first_rows) else None,
        stats=stats,
    )


def reference_rows(layout: ManifestLayout, references: Sequence[Reference]) -> pa.Table:
    """Rows that refer to manifests."""
    rows = len(references)

    def column(values: Iterable[object], type_: pa.DataType) -> pa.Array:
        return pa.array(list(values), type_)

    def bitmaps(name: str) -> pa.Array:
        found = (getattr(one, name) for one in references)
        return column((None if p is None or not len(p) else encode_positions(p) for p in found), pa.binary())

    tracking = {
        name: column((getattr(one, name) for one in references), pa.int64())
        for name in ("snapshot_id", "sequence_number", "dv_snapshot_id", "first_row_id")
    }
    tracking |= {
        "status": column((int(one.status) for one in references), pa.int32()),
        "file_sequence_number": tracking["sequence_number"],
        "deleted_positions": bitmaps("deleted"),
        "replaced_positions": bitmaps("replaced"),
    }
    info = {"min_sequence_number": column((one.min_sequence_number for one in references), pa.int64())}
    for name in ids.FILE_COUNTS:
        for at, what in enumerate(("files", "rows")):
            counts = (one.counts.get(name, (0, 0))[at] for one in references)
            info[f"{name}_{what}_count"] = column(counts, pa.int64())
    info["dv"] = bitmaps("removed")
    paths = relative_paths(layout.location, column((one.location for one in references), pa.string()))
    made = {
        "tracking": layout.struct("tracking", tracking, rows),
        "content_type": column((int(one.content) for one in references), pa.int32()),
        "format_version": column(
            (ids.OLDER_FORMAT if one.older else ids.FORMAT_VERSION for one in references), pa.int32()
        ),
        "location": paths,
        "file_format": column(
            ("AVRO" if one.location.endswith(".avro") else "PARQUET" for one in references), pa.string()
        ),
        "record_count": column((one.records for one in references), pa.int64()),
        "file_size_in_bytes": column((one.size for one in references), pa.int64()),
        "spec_id": column((one.spec_id for one in references), pa.int32()),
        "manifest_info": layout.struct("manifest_info", info, rows),
    }
    if layout.has("content_stats") and rows:
        type_ = layout.schema.field("content_stats").type
        stats = [nulls_of(type_, 1) if one.stats is None else cast(one.stats, type_) for one in references]
        made["content_stats"] = pa.concat_arrays(stats)
    return layout.table(made, rows)
