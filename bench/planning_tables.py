"""The tables of the planning benchmarks, created once and kept in ``.cache/bench``.

``evolved``: the archive as generated. A third of its manifests, those of identity(region), cover all times and regions,
so no planner can skip them in a query of one day. ``timed``: the same without that third; a query of one day then needs
a handful of manifests. ``tenfold``: every manifest of the archive ten times, under ten names.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro

from tests.support.tables.archive import write_evolved_archive

CACHE = Path(__file__).parent.parent / ".cache" / "bench"
ENTRIES = 100

Record = dict[str, Any]


def evolved(manifests: int) -> Path:
    """The metadata file of the archive with this many manifests."""
    home = CACHE / f"evolved-{manifests}"
    metadata = home / "metadata" / "v1.metadata.json"
    if not metadata.exists():
        shutil.rmtree(home, ignore_errors=True)
        write_evolved_archive(home, manifests, ENTRIES)
    return metadata


def timed(manifests: int) -> Path:
    """The archive without the manifests of its first spec."""
    return _relisted(evolved(manifests), "timed", lambda records: [r for r in records if r["partition_spec_id"]])


def tenfold(manifests: int) -> Path:
    """The archive with every manifest listed ten times; the copies are links with different names."""

    def copies(records: list[Record]) -> list[Record]:
        return [record | {"manifest_path": _link(record["manifest_path"], n)} for n in range(10) for record in records]

    return _relisted(evolved(manifests), "tenfold", copies)


def _link(location: str, number: int) -> str:
    path = Path(location.removeprefix("file://"))
    link = path.with_name(f"{path.stem}-{number}.avro")
    if not link.exists():
        os.link(path, link)
    return link.as_uri()


def _relisted(source: Path, name: str, change: Callable[[list[Record]], list[Record]]) -> Path:
    """Another table with the same manifests."""
    target = source.with_name(f"{name}.metadata.json")
    if target.exists():
        return target
    metadata = json.loads(source.read_text())
    snapshot = metadata["snapshots"][0]
    with Path(snapshot["manifest-list"].removeprefix("file://")).open("rb") as stream:
        reader = fastavro.reader(stream)
        records = [record for record in reader if isinstance(record, dict)]
        schema, properties = reader.writer_schema, {"format-version": "2"}
    listed = source.with_name(f"snap-{name}.avro")
    with listed.open("wb") as out:
        fastavro.writer(out, schema, change(records), codec="deflate", metadata=properties)
    snapshot["manifest-list"] = listed.as_uri()
    target.write_text(json.dumps(metadata))
    return target
