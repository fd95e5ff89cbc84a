"""Manifests and lists truncated after every block: all rows, an error, or a warning that rows may be missing.

The files are like those of other writers: one entry per block, and no entry count in the header.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyiceberg.table import Table

from floeplan.errors import CorruptMetadataError
from floeplan.maintenance.rewrite_manifests import rewrite_manifests
from floeplan.metadata.manifests.manifest_list import MANIFEST_COUNT, read_manifest_list
from floeplan.scan.plan import plan_scan
from floeplan.transaction.commit import commit_change
from tests.support.fuzz.mutation import block_ends
from tests.support.tables.commits import (
    NO_SCAN_EXTRAS,
    Rows,
    append,
    delete_first_rows,
    equality_delete,
    evolved_table,
    open_catalog,
    patient,
    rows_of,
)

pytestmark = pytest.mark.property


def sample(folder: Path, version: int) -> Table:
    """Files of two specs, several per manifest, and deletes of each kind."""
    table = evolved_table(open_catalog(folder), version)
    table = commit_change(table, append(table, rows_of(40, 50, "b") + rows_of(50, 60, "a"))).table
    if version > 1:
        table = delete_first_rows(table, slice(0, 2))
        table = commit_change(table, equality_delete(table, [7, 12], 0), options=patient()).table
    rewrite_manifests(table)
    return table.refresh()


def in_many_blocks(path: Path, **changed: dict[str, Any]) -> None:
    """The same records, one per block; ``changed`` has new field values by the value of the first field."""
    reader = fastavro.reader(io.BytesIO(path.read_bytes()))
    header = {k: v for k, v in reader.metadata.items() if not k.startswith("avro.") and k != MANIFEST_COUNT}
    records = [record | changed.get(str(next(iter(record.values()))), {}) for record in reader]
    out = io.BytesIO()
    fastavro.writer(out, reader.writer_schema, records, metadata=header, sync_interval=1)
    path.write_bytes(out.getvalue())


def metadata_files(table: Table) -> list[Path]:
    """The manifests and the list of the newest snapshot, as another writer would have written them."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = read_manifest_list(snapshot.manifest_list, table.io).path.to_pylist()
    for manifest in manifests:
        in_many_blocks(local(manifest))
    lengths = {manifest: {"manifest_length": local(manifest).stat().st_size} for manifest in manifests}
    in_many_blocks(local(snapshot.manifest_list), **lengths)
    return [*map(local, manifests), local(snapshot.manifest_list)]


def local(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def rows(table: Table) -> Rows | None:
    """The rows, or ``None`` after an error or a warning."""
    try:
        plan = plan_scan(table, options=NO_SCAN_EXTRAS)
    except CorruptMetadataError:
        return None
    found = sorted((row["id"], row["part"]) for row in plan.to_arrow().to_pylist())
    return None if {warning.kind for warning in plan.warnings} == {"short-manifest-list"} else found


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_cut_between_blocks_is_never_silent(tmp_path: Path, version: int) -> None:
    table = sample(tmp_path, version)
    files = metadata_files(table)
    whole = rows(table)
    assert whole is not None
    assert len(whole) == (60 if version == 1 else 56)
    cuts = 0
    for path in files:
        intact = path.read_bytes()
        for cut in block_ends(intact)[:-1]:
            path.write_bytes(intact[:cut])
            assert rows(table) is None, f"{path.name} cut at {cut} of {len(intact)}"
            cuts += 1
        path.write_bytes(intact)
    assert cuts >= 8
    assert rows(table) == whole
