"""Tables and Parquet files damaged in one place: every operation returns a result or a Floeplan error.

Runs in a separate process, so that memory and time can be limited and a crash is detected: ``python -m
tests.support.fuzz.hostile_tables COUNT SHARE [CASE.json …]``. Every case is printed to stderr before it runs, and to
stdout with its error when it fails, as JSON for ``tests/fuzz/corpus``.
"""

from __future__ import annotations

import faulthandler
import io
import json
import logging
import os
import resource
import signal
import struct
import sys
import tempfile
import traceback
import uuid
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import chain, product
from pathlib import Path
from random import Random
from typing import Any, Protocol

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table
from pyroaring import BitMap64

import floeplan as fp
from floeplan.catalog import load_table
from floeplan.errors import FloeplanError
from floeplan.maintenance.doctor import doctor
from floeplan.maintenance.expire import expire_snapshots
from floeplan.maintenance.inspect import inspect_table
from floeplan.maintenance.orphans import remove_orphans
from floeplan.metadata.files import Location, TableLocations
from floeplan.metadata.manifests.entries import EntryColumns
from floeplan.metadata.root_writer import write_root
from floeplan.metadata.v4.convert import write_tree
from floeplan.metadata.v4.mumbling import encode_positions
from floeplan.metadata.v4.to_manifests import write_manifests
from floeplan.metadata.v4.tree import MetadataTree
from floeplan.parquet.footer.footer import ColumnChunks, read_footer
from floeplan.parquet.pages.data_pages import UNSUPPORTED_PAGE
from floeplan.parquet.prune.options import PruneOptions
from floeplan.parquet.prune.pruner import Pruner
from floeplan.parquet.prune.selection import RowSelection
from floeplan.parquet.read.reader import read, read_selected
from floeplan.parquet.source import open_source
from floeplan.rewrite.pages.filtered_pages import FilteredColumn, SourcePages, can_filter_pages
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.rewrite.plan.planner import RewriteDataFilesPlanner
from floeplan.rewrite.spec_upgrade.upgrade import UpgradeOptions, upgrade_spec
from floeplan.scan.delete_files import decode_deletion_vector, encode_deletion_vector
from floeplan.scan.model import ScanOptions
from floeplan.scan.plan import plan_scan
from floeplan.snapshot.reader import SnapshotReader
from floeplan.transaction.commit import commit_change
from floeplan.write.target import WriteOptions
from tests.support.fuzz import fuzzing
from tests.support.fuzz.mutation import Edit, byte_edits, edited_bytes, edited_tree, tree_edits
from tests.support.tables.commits import (
    append,
    arrow,
    delete_first_rows,
    equality_delete,
    evolved_table,
    open_catalog,
    patient,
    rows_of,
)

# A Parquet file with every structure Floeplan reads, damaged in one of them, and a deletion vector


VECTOR = "deletion vector"
_AROUND_BITMAP = 12
"""Bytes of the length, magic and checksum."""
Region = tuple[int, int]
ROWS = 600
ZSTD = 6
_MOST_ROWS = 10**7
"""Page filtering allocates a flag for each row."""
PREDICATES = (
    "id >= 120 AND id < 180 AND name = 'n7'",
    "id IN (5, 599, 700) OR price IS NULL",
    "pair.a = 40 AND name LIKE 'n1%'",
    "name = 'nowhere'",
)


def write_sample(path: Path) -> None:
    """Row groups of pages with indexes, bloom filters, dictionaries, nulls, a struct and a list."""
    numbers = range(ROWS)
    table = pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "name": [f"n{number % 40}" for number in numbers],
            "price": pa.array([None if number % 7 == 0 else number / 3 for number in numbers], pa.float64()),
            "pair": [{"a": number // 10, "b": None} for number in numbers],
            "tags": [["x"] * (number % 3) for number in numbers],
        }
    )
    pq.write_table(
        table,
        path,
        row_group_size=200,
        max_rows_per_page=25,
        write_page_index=True,
        use_dictionary=["name"],
        bloom_filter_options={"id": {"ndv": 200}, "name": {"ndv": 40}},
    )


def regions(path: Path) -> dict[str, list[Region]]:
    """The byte ranges of each kind of structure in the file."""
    footer = read_footer(open_source(str(path)))
    chunks = [footer.chunks(leaf) for leaf in range(len(footer.leaves))]

    def places(kind: Callable[[ColumnChunks], tuple[object, object]]) -> list[Region]:
        pairs = [pair for chunk in chunks for pair in zip(*kind(chunk), strict=True)]
        return [(int(at), int(at + size)) for at, size in pairs if at > 0 and size > 0]

    return {
        "footer": [(footer.footer_start, footer.file_size)],
        "column index": places(lambda chunk: (chunk.column_index_offset, chunk.column_index_length)),
        "offset index": places(lambda chunk: (chunk.offset_index_offset, chunk.offset_index_length)),
        "bloom filter": places(lambda chunk: (chunk.bloom_offset, chunk.bloom_length)),
        "pages": places(lambda chunk: (chunk.start, chunk.total_compressed_size)),
    }


class FileSample:
    """Files without a table: a Parquet file, of which one structure is damaged, and a deletion vector."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        path = folder / "sample.parquet"
        write_sample(path)
        self._regions = regions(path)
        assert all(self._regions.values()), self._regions
        self._vector = folder / "vector.bin"
        self._vector.write_bytes(
            encode_deletion_vector(BitMap64([1, 5, *range(900, 70_000), 2**33, *range(2**34, 2**34 + 9)]))
        )
        self.files = dict.fromkeys(self._regions, path) | {VECTOR: self._vector}

    def edits(self, target: str, random: Random) -> list[Edit]:
        """Edits within one byte range of this kind; positions count from the end of the file or bitmap."""
        if target == VECTOR:
            return byte_edits(len(self._vector.read_bytes()) - _AROUND_BITMAP, random)
        start, end = random.choice(self._regions[target])
        behind = self.files[target].stat().st_size - end
        return [[kind, at - behind, text] for kind, at, text in byte_edits(end - start, random)]

    def changed(self, target: str, data: bytes, edits: list[Edit]) -> bytes:
        """The file after the edits; a vector gets a valid checksum, so that its content is decoded."""
        if target != VECTOR:
            return edited_bytes(data, edits)
        body = data[4:8] + edited_bytes(data[8:-4], edits)
        return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))

    def operations(self, _: str) -> list[Callable[[], object]]:
        """Pruning by every kind of metadata, and reading with and without pruning."""
        path = str(self.files["footer"])
        options = PruneOptions(emit_roaring=True)
        some = RowSelection.from_runs([30, 390], [10, 20])
        return [
            *(lambda where=where: Pruner(where, options=options).prune(path).to_dict() for where in PREDICATES),
            *(lambda where=where: read(path, where).to_dict() for where in PREDICATES),
            lambda: read(path).table.validate(full=True),
            lambda: read_selected(source := open_source(path), read_footer(source), selection=some),
            lambda: thin_columns(path),
            lambda: len(decode_deletion_vector(self._vector.read_bytes(), "vector") & BitMap64(range(1000))),
        ]


def thin_columns(path: str) -> None:
    """Filter the pages of each column; unsupported pages are skipped."""
    source = open_source(path)
    footer = read_footer(source)
    for leaf, group in product(footer.leaves, range(footer.num_row_groups)):
        place, rows = footer.chunk_location(leaf, group), int(footer.row_group_rows[group])
        if rows <= _MOST_ROWS and can_filter_pages(leaf, place):
            (data,) = source.read_ranges([(place.start, place.size)])
            column = FilteredColumn(leaf, ZSTD, WriteOptions())
            with suppress(*UNSUPPORTED_PAGE):
                column.add(SourcePages(data, place, rows, np.arange(rows) % 3 > 0, None))
                column.finish()


# ---

SECONDS = 20
MEGABYTES = 3000
UNFORESEEN = "rewrite-failed"
"""The kind of unexpected errors in a rewrite group."""
ROOT, CACHE = "root.parquet", "cache"
SCAN = ScanOptions(page_index=True, bloom_filter=True, cache=False, report=False, recover=True)


@dataclass(frozen=True, slots=True)
class Case:
    """One damaged file of a table of this format version; version 0 is a file without a table."""

    version: int
    target: str
    edits: list[Edit]

    def text(self) -> str:
        return json.dumps({"version": self.version, "target": self.target, "edits": self.edits})


class Damageable(Protocol):
    """A sample: files by kind, random edits of them, and the operations to run."""

    files: dict[str, Path]

    def edits(self, target: str, random: Random) -> list[Edit]: ...
    def changed(self, target: str, data: bytes, edits: list[Edit]) -> bytes: ...
    def operations(self, target: str, /) -> list[Callable[[], object]]: ...


class Sample:
    """A table of two specs with deletes."""

    def __init__(self, folder: Path, version: int) -> None:
        folder.mkdir()
        self.home, self.catalog = folder, open_catalog(folder)
        table = evolved_table(self.catalog, version)
        table = commit_change(table, append(table, rows_of(40, 50, "b"))).table
        if version > 1:
            table = delete_first_rows(table, slice(0, 2))
            table = commit_change(table, equality_delete(table, [7, 12], 0), options=patient()).table
        self.version = version
        self.metadata = _local(table.metadata_location)
        root = folder / ROOT
        write_root(table, str(root), table.current_snapshot())
        tree = write_tree(table, str(folder / "tree"), table.current_snapshot(), leaf_entries=1)
        leaf = next(path for path in tree.leaves if "leaf" in path)
        # The root also removes a position from its second leaf.
        removed = {"hex": encode_positions(np.array([0])).hex()}
        edits: list[Edit] = [["set", ["rows", 1, "manifest_info", "dv"], removed]]
        Path(tree.root).write_bytes(_changed_rows(Path(tree.root).read_bytes(), edits))
        inline = write_tree(table, str(folder / "inline"), table.current_snapshot(), leaf_entries=0).root
        self.files = _files(table) | {"root": root}
        for name, path in {"v4 root": tree.root, "v4 leaf": leaf, "v4 inline": inline}.items():
            self.files |= {name: Path(path), f"{name} rows": Path(path)}

    def edits(self, target: str, random: Random) -> list[Edit]:
        data = self.files[target].read_bytes()
        if target == "metadata":
            return tree_edits(json.loads(data), random, typed=False)
        if target.endswith("rows"):
            found = _stored_rows(data)
            if random.random() < 0.3:
                return [["set", ["types", random.choice(sorted(found["types"]))], random.choice(STORED_TYPES)]]
            return [
                [kind, ["rows", *place], *value]
                for kind, place, *value in tree_edits(found["rows"], random, typed=True)
            ]
        if _is_avro(target, data):
            return tree_edits(_records(data)[0], random, typed=True)
        return byte_edits(len(data), random)

    def changed(self, target: str, data: bytes, edits: list[Edit]) -> bytes:
        return _changed(target, data, edits)

    def operations(self, target: str) -> list[Callable[[], object]]:
        """All operations that need no catalog, and a few changes; for metadata trees only those that read them."""
        metadata, root = str(self.metadata), str(self.files["root"])
        rewrite = RewriteOptions(where="id > 3")
        of_tree = str(self.files["v4 inline" if target.startswith("v4 inline") else "v4 root"])
        tree = replace(SCAN, root=of_tree)
        from_tree: list[Callable[[], object]] = [
            lambda: plan_scan(metadata, "id = 12", options=tree).to_arrow(),
            lambda: plan_scan(metadata, "id >= 5 AND part = 'a' OR part IS NULL", options=tree).explain(),
            lambda: plan_scan(metadata, options=tree).to_dict(),
            lambda: _manifests_from_tree(metadata, of_tree),
        ]
        if target.startswith("v4"):
            return from_tree
        return [
            *from_tree,
            lambda: plan_scan(metadata, "id >= 5 AND part = 'a'", options=SCAN).to_dict(),
            lambda: plan_scan(metadata, "id = 12 OR part IS NULL", options=SCAN).to_arrow(),
            lambda: plan_scan(metadata, options=SCAN).explain(),
            lambda: plan_scan(metadata, options=SCAN).to_arrow(),
            lambda: inspect_table(metadata).to_dict(),
            lambda: doctor(metadata).to_dict(),
            lambda: plan_scan(metadata, "id = 12", options=replace(SCAN, root=root)).to_arrow(),
            lambda: RewriteDataFilesPlanner(metadata, rewrite, cache=False).plan_with_stats().to_dict(),
            lambda: upgrade_spec(metadata, options=UpgradeOptions(dry_run=True)).to_dict(),
            lambda: expire_snapshots(metadata, older_than_ms=2**53).to_dict(),
            lambda: remove_orphans(metadata, older_than=timedelta(days=1), now_s=2.0**40).to_dict(),
            lambda: _new_root(metadata),
            *(partial(self._changed_table, change) for change in CHANGES),
        ]

    def _changed_table(self, change: Callable[[Table], object]) -> None:
        """Change the table unless its metadata refers to another location; files elsewhere must not be touched."""
        location = str(self.metadata)
        home = Location.parse(str(self.home))
        if not all(home.holds(root) for root in TableLocations.of(load_table(location).metadata).roots):
            return
        name = f"db.c{uuid.uuid4().hex}"
        try:
            self.catalog.register_table(name, location)
        except Exception:
            return  # PyIceberg rejects the metadata
        before = _outside(self.home)
        try:
            change(load_table(name, self.catalog))
        finally:
            assert _outside(self.home) == before, "files outside the table were touched"


CHANGES: tuple[Callable[[Table], object], ...] = (
    lambda table: fp.append(table, arrow(rows_of(70, 75)), options=patient()),
    lambda table: fp.delete(table, "id = 12 OR id = 41", options=patient()),
    lambda table: fp.rewrite_data_files(table, options={"rewrite-all": "true"}, commit=patient()),
    lambda table: fp.doctor(table, repair=True, commit=patient()),
)
"""Changes that remove no files but their own."""


def _outside(home: Path) -> dict[str, int]:
    """Modification times of files outside the table, where relative paths and paths with ``..`` lead to."""
    others = [path for path in home.parent.iterdir() if path != home and path.name != CACHE]
    files = [path for other in others for path in (other, *other.rglob("*"))]
    return {str(path): path.stat().st_mtime_ns for path in files}


def _files(table: Table) -> dict[str, Path]:
    """The newest file of each kind."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    found = {"metadata": table.metadata_location, "list": snapshot.manifest_list}
    reader = SnapshotReader.open(table, snapshot)
    for row, (path, content) in enumerate(
        zip(reader.manifests.path.to_pylist(), reader.manifests.content, strict=True)
    ):
        found["delete manifest" if content else "manifest"] = path
        entries = reader.entries(np.array([row]), EntryColumns(), live=False)
        found["deletes" if content else "data"] = entries.path[0].as_py()
    found |= {f"{name} bytes": found[name] for name in ("list", "manifest")}
    return {name: _local(location) for name, location in found.items()}


def _local(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def _is_avro(target: str, data: bytes) -> bool:
    """Whether records are edited: manifests of format 4 are Parquet files, of which bytes are."""
    return target in ("list", "manifest", "delete manifest") and not data.startswith(b"PAR1")


def _records(data: bytes) -> tuple[list[Any], Any, dict[str, str]]:
    reader = fastavro.reader(io.BytesIO(data))
    header = {name: value for name, value in reader.metadata.items() if not name.startswith("avro.")}
    return list(reader), reader.writer_schema, header


def _changed(target: str, data: bytes, edits: list[Edit]) -> bytes:
    """The file after the edits; unchanged if its schema does not allow them."""
    if target == "metadata":
        return json.dumps(edited_tree(json.loads(data), edits)).encode()
    if target.endswith("rows"):
        return _changed_rows(data, edits)
    if not _is_avro(target, data):
        return edited_bytes(data, edits)
    records, schema, header = _records(data)
    out = io.BytesIO()
    try:
        fastavro.writer(out, schema, edited_tree(records, edits), metadata=header)
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError, struct.error):
        return data
    return out.getvalue()


STORED_TYPES = ("int32", "int64", "string", "bool", "double", "binary")


def _stored_rows(data: bytes) -> dict[str, Any]:
    """The rows of a v4 manifest, and the type of each of its columns by its path."""
    table = pq.read_table(pa.BufferReader(data))
    return {"rows": table.to_pylist(), "types": dict(_types(table.schema))}


def _types(fields: Iterable[pa.Field], above: str = "") -> Iterator[tuple[str, str]]:
    for field in fields:
        if pa.types.is_struct(field.type):
            yield from _types(field.type, f"{above}{field.name}/")
        yield f"{above}{field.name}", str(field.type)


def _retyped(field: pa.Field, types: dict[str, str], above: str = "") -> pa.Field:
    """A field of these types, of which everything may be null."""
    path, type_ = f"{above}{field.name}", field.type
    if types[path] != str(type_):
        type_ = pa.type_for_alias(types[path])
    elif pa.types.is_struct(type_):
        type_ = pa.struct([_retyped(one, types, f"{path}/") for one in type_])
    return pa.field(field.name, type_, True, field.metadata)


def _changed_rows(data: bytes, edits: list[Edit]) -> bytes:
    """A v4 manifest with other values or types; unchanged if they cannot be stored."""
    table, found = pq.read_table(pa.BufferReader(data)), edited_tree(_stored_rows(data), edits)
    properties = {k.decode(): v.decode() for k, v in pq.read_metadata(pa.BufferReader(data)).metadata.items()}
    out = io.BytesIO()
    try:
        same = dict(_types(table.schema))
        schema, wanted = (pa.schema([_retyped(one, types) for one in table.schema]) for types in (same, found["types"]))
        changed = pa.Table.from_pylist([row or {} for row in found["rows"]], schema).cast(wanted)
        with pq.ParquetWriter(out, wanted, store_schema=False) as writer:
            writer.write_table(changed)
            writer.add_key_value_metadata(properties)
    except (pa.ArrowException, ValueError, TypeError, AttributeError, LookupError, OverflowError):
        return data
    return out.getvalue()


@contextmanager
def damaged(sample: Damageable, target: str, edits: list[Edit]) -> Iterator[None]:
    """Replace one file of a sample within the block."""
    path = sample.files[target]
    intact = path.read_bytes()
    path.write_bytes(sample.changed(target, intact, edits))
    try:
        yield
    finally:
        path.write_bytes(intact)


def examine(sample: Damageable, target: str) -> None:
    """Run all operations on a damaged file; a Floeplan error is a valid result."""
    for operation in sample.operations(target):
        try:
            operation()
        except FloeplanError as error:
            if error.kind == UNFORESEEN:
                raise AssertionError(error.message) from error
            json.dumps(error.to_dict())


def _new_root(metadata: str) -> None:
    table = load_table(metadata)
    write_root(table, f"{metadata}.root.parquet", table.current_snapshot()).to_dict()
    write_tree(table, f"{metadata}.tree", table.current_snapshot(), leaf_entries=1).to_dict()


def _manifests_from_tree(metadata: str, root: str) -> None:
    table = load_table(metadata)
    tree = MetadataTree(root, table.metadata)
    write_manifests(table, tree, f"{metadata}.back", table.current_snapshot()).to_dict()


def run(sample: Damageable, target: str, edits: list[Edit]) -> str | None:
    """The unexpected error, or None."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    faulthandler.dump_traceback_later(20 * SECONDS, exit=True)
    try:
        with damaged(sample, target, edits):
            examine(sample, target)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        ours = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames if "floeplan" in frame.filename]
        return f"{type(error).__name__}: {str(error)[:300]} ({' '.join(ours[-6:])})"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
    return None


def cases(samples: dict[int, Damageable], count: int, share: float) -> Iterator[Case]:
    for seed in fuzzing.seeds(count, share=share):
        random = Random(seed)
        version = random.choice((0, 0, 1, 2, 2, 3, 3, 4))
        target = random.choice(sorted(samples[version].files))
        yield Case(version, target, samples[version].edits(target, random))


def main(count: int, share: float, kept: list[str]) -> int:
    resource.setrlimit(resource.RLIMIT_DATA, (MEGABYTES * 2**20, MEGABYTES * 2**20))
    signal.signal(signal.SIGPROF, _too_long)
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=UserWarning)
    logging.disable()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"FLOEPLAN_CACHE": f"{folder}/{CACHE}", "FLOEPLAN_REPORTS": "off"}
        here = Path(folder, "here", "a", "b", "c")
        here.mkdir(parents=True)
        os.chdir(here)
        samples: dict[int, Damageable] = {0: FileSample(Path(folder, "file"))}
        samples |= {version: Sample(Path(folder, f"v{version}"), version) for version in (1, 2, 3, 4)}
        found = [Case(**json.loads(Path(path).read_text())) for path in kept]
        for case in chain(found, cases(samples, count, share)):
            sys.stderr.write(f"{case.text()}\n")
            problem = run(samples[case.version], case.target, case.edits)
            if problem is not None:
                failed += 1
                sys.stdout.write(f"{case.text()}\n    {problem}\n")
    return failed


def _too_long(*_: object) -> None:
    raise TimeoutError(f"more than {SECONDS} s of CPU")


if __name__ == "__main__":
    sys.exit(bool(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])))
