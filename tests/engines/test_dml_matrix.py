"""Every change on every evolved table: Spark then reads the rows that plain Python computes.

A cell is a change, run on a fork of the table. Spark's rows, unfiltered and with filters that prune, must equal the
result that plain Python computes from the previous rows; conditions are evaluated by Spark without pruning. All forks
of a table are read in one query. PyIceberg and DuckDB also read the forks they support.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

import floeplan as fp
from floeplan.dml.commit import DmlResult
from floeplan.metadata.manifests.manifest_list import read_manifest_list
from floeplan.metadata.manifests.reader import read_entries
from floeplan.partition.union import UnionPartitionType
from floeplan.scan.model import ScanOptions
from floeplan.schemas import fields_by_id
from tests.support.fuzz import fuzzing
from tests.support.oracles.duckdb_reader import DuckDb, key_columns, left_out
from tests.support.oracles.rows import TypedRow as Row
from tests.support.oracles.rows import partition_of
from tests.support.spark.matrix import FEW, REPRESENTATIVES, TABLES, Matrix, MatrixTable, interpreted, parametrized

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.engines

COPY, MERGE = "copy-on-write", "merge-on-read"
ENDED = {"allow_late_equality_deletes": True}
"""Equality deletes of the tables are recent, but their writer has ended."""
WITH_EVERY_CELL = (
    "evolving_v1",
    "evolving_v2_position_file",
    "evolving_v2_position_partition",
    "evolving_v3_vectors",
)
"""A table for each format version and kind of position delete."""
READ_BY_PYICEBERG = ("evolving_v1", "evolving_v2_position_file", "evolving_v2_position_partition")
MARCH = datetime(2024, 3, 1, tzinfo=UTC)


class Facts:
    """A table before it is changed: rows, column names that a chain may rename, and rows that match each condition."""

    def __init__(self, made: MatrixTable, table: Table) -> None:
        self.made, self.table = made, table
        self.before: pa.Table = made.rows()
        self.rows: list[Row] = self.before.to_pylist()
        self.time = next(name for name in ("ts", "at", "happened") if name in self.before.column_names)
        self.region = next(name for name in ("region", "area") if name in self.before.column_names)

    @property
    def conditions(self) -> dict[str, str]:
        return {
            "month": f"{self.time} >= TIMESTAMP '2024-03-01' AND {self.time} < TIMESTAMP '2024-04-01'",
            "old partition": f"{self.region} = 'eu'",
            "days": f"{self.time} >= TIMESTAMP '2024-03-02' AND {self.time} < TIMESTAMP '2024-03-05'",
            "ids": "id IN (1, 7, 25, 30, 44)",
            "value": "v > 10.0",
            "file": "pk >= 2000 AND pk < 3000",
            "opaque": "n % 3 = 1 OR flag",
            "all": "TRUE",
            "nothing": "pk < 0",
        }

    @cached_property
    def matches(self) -> dict[str, set[int]]:
        found = self.made.matches(list(self.conditions.values()))
        return {name: set(found[text]) for name, text in self.conditions.items()}

    def without(self, name: str) -> list[Row]:
        return [row for row in self.rows if row["pk"] not in self.matches[name]]

    @cached_property
    def new(self) -> pa.Table:
        """Five copies of existing rows with new keys."""
        some = self.before.slice(2, 5)
        position = some.schema.get_field_index("pk")
        return some.set_column(position, some.schema.field(position), pa.array(range(90_000, 90_005), pa.int32()))

    @cached_property
    def source(self) -> pa.Table:
        """Keys of the table, an unknown key and a null key, with values."""
        keys = sorted({row["pk"] for row in self.rows})[::7]
        columns = {
            "pk": pa.array([*keys, 70_000, None], pa.int32()),
            "n": pa.array([*range(len(keys)), 5, 6], pa.int32()),
            "gone": pa.array([*(i % 3 == 0 for i in range(len(keys))), False, True]),
        }
        return pa.table(columns)


@dataclass(frozen=True)
class Cell:
    """A change and its expected effect on the rows."""

    name: str
    run: Callable[[Table, Facts], DmlResult]
    expect: Callable[[Facts], list[Row]]
    properties: Mapping[str, str] = field(default_factory=dict)


def updated(facts: Facts, name: str) -> list[Row]:
    return [row | changed(row) if row["pk"] in facts.matches[name] else row for row in facts.rows]


def changed(row: Row) -> Row:
    return {"n": row["pk"] + 1, "flag": None if row["flag"] is None else not row["flag"]}


def upserted(facts: Facts) -> list[Row]:
    source = {row["pk"]: row for row in facts.source.to_pylist() if row["pk"] is not None}
    kept = [row | {"n": source[row["pk"]]["n"]} if row["pk"] in source else row for row in facts.rows]
    return [*kept, dict.fromkeys(facts.before.column_names) | defaults(facts) | {"pk": 70_000, "n": 5}]


def defaults(facts: Facts) -> Row:
    """Values of columns that an insert does not name."""
    return {f.name: f.write_default for f in facts.table.schema().fields if f.write_default is not None}


def merged(facts: Facts) -> list[Row]:
    source = {row["pk"]: row for row in facts.source.to_pylist() if row["pk"] is not None}
    result: list[Row] = []
    for row in facts.rows:
        match = source.get(row["pk"])
        if match is None:
            if row["pk"] % 1000 >= 18:
                continue
            result.append(row | {"flag": True} if row["pk"] % 1000 == 17 else row)
        elif not match["gone"]:
            result.append(row | {"n": match["n"] + 100})
    return [*result, dict.fromkeys(facts.before.column_names) | defaults(facts) | {"pk": 70_000, "n": 5}]


def replaced_partitions(facts: Facts) -> list[Row]:
    """Without the rows of the logical partitions of the new rows."""
    spec, schema = facts.table.spec(), facts.table.schema()
    new = facts.new.to_pylist()
    gone = {partition_of(row, spec, schema) for row in new}
    return [*(row for row in facts.rows if partition_of(row, spec, schema) not in gone), *new]


def deleting(name: str, mode: str) -> Cell:
    return Cell(
        f"delete {name} {mode}",
        lambda table, facts: fp.delete(table, facts.conditions[name], mode=mode, **ENDED),
        lambda facts: facts.without(name),
    )


def updating(name: str, mode: str) -> Cell:
    return Cell(
        f"update {name} {mode}",
        lambda table, facts: fp.update(
            table, {"n": "pk + 1", "flag": "NOT flag"}, facts.conditions[name], mode=mode, **ENDED
        ),
        lambda facts: updated(facts, name),
    )


def overwriting(name: str, mode: str) -> Cell:
    return Cell(
        f"overwrite {name} {mode}",
        lambda table, facts: fp.overwrite(table, facts.new, facts.conditions[name], mode=mode, **ENDED),
        lambda facts: [*facts.without(name), *facts.new.to_pylist()],
    )


def by_mode(mode: str) -> Iterator[Cell]:
    yield from (deleting(name, mode) for name in ("month", "old partition", "days", "ids", "value", "file", "opaque"))
    yield from (updating(name, mode) for name in ("days", "opaque"))
    yield overwriting("month", mode)
    yield Cell(
        f"dynamic overwrite {mode}",
        lambda table, facts: fp.overwrite(table, facts.new, dynamic=True, mode=mode, **ENDED),
        replaced_partitions,
    )
    yield Cell(
        f"upsert {mode}",
        lambda table, facts: (
            fp.merge(table, facts.source, "target.pk = source.pk", mode=mode, **ENDED)
            .when_matched_update({"n": "source.n"})
            .when_not_matched_insert({"pk": "pk", "n": "n"}, condition="pk IS NOT NULL")
            .execute()
        ),
        upserted,
    )
    yield Cell(
        f"merge {mode}",
        lambda table, facts: (
            fp.merge(table, facts.source, ["pk"], mode=mode, **ENDED)
            .when_matched_delete("source.gone")
            .when_matched_update({"n": "s.n + 100"})
            .when_not_matched_insert({"pk": "pk", "n": "n"}, condition="pk IS NOT NULL")
            .when_not_matched_by_source_update({"flag": "TRUE"}, condition="pk % 1000 = 17")
            .when_not_matched_by_source_delete("pk % 1000 >= 18")
            .execute()
        ),
        merged,
    )


EITHER_WAY = (
    Cell(
        "append",
        lambda table, facts: fp.append(table, facts.new, fast=True),
        lambda facts: [*facts.rows, *facts.new.to_pylist()],
    ),
    Cell(
        "merge append",
        lambda table, facts: merging_append(table, facts),
        lambda facts: [*facts.rows, *facts.new.to_pylist()],
        {"commit.manifest.min-count-to-merge": "2"},
    ),
    Cell(
        "add files under the default spec",
        lambda table, facts: fp.append(table, one_row_file(table, facts), add_files=True),
        lambda facts: [*facts.rows, facts.new.to_pylist()[0]],
    ),
    Cell(
        "add files under an old spec",
        lambda table, facts: fp.append(table, one_row_file(table, facts), add_files=True, spec_id=oldest_spec(table)),
        lambda facts: [*facts.rows, facts.new.to_pylist()[0]],
    ),
    deleting("all", COPY),
    overwriting("all", COPY),
)


def merging_append(table: Table, facts: Facts) -> DmlResult:
    """Append to a table that merges two manifests: one manifest per spec and content is left."""
    result = fp.append(table, facts.new)
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    listed = read_manifest_list(snapshot.manifest_list, table.io)
    kinds = list(zip(listed.spec_id.tolist(), listed.content.tolist(), strict=True))
    assert len(kinds) == len(set(kinds))
    return result


def one_row_file(table: Table, facts: Facts) -> str:
    """A file with one row, as another engine would write it for this table."""
    row = facts.new.slice(0, 1).cast(schema_to_pyarrow(table.schema()))
    folder = Path(table.location().removeprefix("file://").removeprefix("file:"), "given")
    folder.mkdir(exist_ok=True)
    path = folder / f"{uuid.uuid4()}.parquet"
    pq.write_table(row, path)
    return str(path)


def oldest_spec(table: Table) -> int:
    """The oldest spec whose source columns exist."""
    known = fields_by_id(table.schema())
    return min(i for i, spec in table.specs().items() if all(field.source_id in known for field in spec.fields))


def all_cells(_: str, version: int) -> list[Cell]:
    return [*EITHER_WAY, *by_mode(COPY), *(by_mode(MERGE) if version > 1 else ())]


def some_cells(name: str, version: int) -> list[Cell]:
    """Some of the cells; all with ``FLOEPLAN_FUZZ_SECONDS``.

    Cells are distributed over the tables of one format version. Together the representatives have every cell in format
    2, every merge-on-read cell in format 3, where copy-on-write is the same, and half of the cells in format 1.
    """
    found = all_cells(name, version)
    if fuzzing.SECONDS:
        return found
    peers = [table for table in TABLES if format_version(table) == format_version(name)]
    peers.sort(key=lambda table: table not in REPRESENTATIVES)
    if version == 3 and name in REPRESENTATIVES:
        return [*EITHER_WAY, *by_mode(MERGE)][peers.index(name) :: 3]
    return found[peers.index(name) % 4 :: 4]


def format_version(name: str) -> str:
    """The last one in a name: ``voids_v1_to_v2_equality`` has version 2."""
    return re.findall(r"_v(\d)", name)[-1]


class Forks:
    """Copies of one table, one for each cell."""

    def __init__(self, made: MatrixTable, catalog: SqlCatalog) -> None:
        self.made, self.catalog = made, catalog
        self.names: list[str] = []

    def fork(self, properties: Mapping[str, str]) -> Table:
        location = self.catalog.load_table(self.made.identifier).metadata_location
        if properties:
            location = with_properties(location, properties)
        name = f"{self.made.identifier}_dml_{uuid.uuid4().hex}"
        self.names.append(name)
        return self.catalog.register_table(name, location)

    def read(self, spark: SparkSession, where: str = "TRUE") -> list[list[str]]:
        """The rows of every fork as Spark reads them, as sorted texts."""
        queries = [f"SELECT {n} AS cell, * FROM local.{name} WHERE {where}" for n, name in enumerate(self.names)]
        with interpreted(spark):
            answered = spark.sql(" UNION ALL ".join(queries)).toArrow().to_pylist()
        found: list[list[str]] = [[] for _ in self.names]
        for row in answered:
            found[row.pop("cell")].append(text(row))
        return [sorted(rows) for rows in found]


def with_properties(location: str, properties: Mapping[str, str]) -> str:
    """A metadata file of the same table with more properties."""
    metadata = Path(location.removeprefix("file://").removeprefix("file:"))
    document = json.loads(metadata.read_text())
    document["properties"] = {**document.get("properties", {}), **properties}
    changed = metadata.with_name(f"{uuid.uuid4()}.metadata.json")
    changed.write_text(json.dumps(document))
    return changed.as_uri()


def text(row: Row) -> str:
    """A row as text: NaN equals itself, -0.0 differs from 0.0."""
    return repr(sorted(row.items()))


def texts(rows: Sequence[Row]) -> list[str]:
    return sorted(map(text, rows))


def check_manifests(table: Table) -> None:
    """Each manifest has files of one spec and correct counts."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    listed = read_manifest_list(snapshot.manifest_list, table.io)
    union = UnionPartitionType.of_table(table.metadata)
    entries = read_entries(listed, union, io=table.io)
    for row, spec_id in enumerate(listed.spec_id.tolist()):
        mine = entries.ints("manifest") == row
        assert set(entries.spec_id[mine].tolist()) <= {spec_id}
        counts = [int((entries.status[mine] == status).sum()) for status in (0, 1, 2)]
        assert counts == [listed.existing_files[row], listed.added_files[row], listed.deleted_files[row]]


@pytest.mark.parametrize("name", parametrized(few=FEW))
def test_rows_after_some_changes(
    name: str, matrix: Matrix, local_catalog: SqlCatalog, spark: SparkSession, duckdb: DuckDb
) -> None:
    assert_rows_after(some_cells, name, matrix, local_catalog, spark, duckdb)


@pytest.mark.matrix
@pytest.mark.parametrize("name", WITH_EVERY_CELL)
def test_rows_after_every_change(
    name: str, matrix: Matrix, local_catalog: SqlCatalog, spark: SparkSession, duckdb: DuckDb
) -> None:
    assert_rows_after(all_cells, name, matrix, local_catalog, spark, duckdb)


def assert_rows_after(
    cells: Callable[[str, int], list[Cell]],
    name: str,
    matrix: Matrix,
    local_catalog: SqlCatalog,
    spark: SparkSession,
    duckdb: DuckDb,
) -> None:
    made = matrix.table(name)
    table = local_catalog.load_table(made.identifier)
    facts, forks = Facts(made, table), Forks(made, local_catalog)
    done = cells(name, table.metadata.format_version)
    expected: list[list[Row]] = []
    read_by_duckdb = duckdb.reads(table, key_columns(facts.rows))
    assert read_by_duckdb or name not in READ_BY_PYICEBERG
    for cell in done:
        fork = forks.fork(cell.properties)
        result = cell.run(fork, facts)
        expected.append(cell.expect(facts))
        fork = local_catalog.load_table(forks.names[-1])
        mine = fp.plan_scan(fork, options=ScanOptions(report=False)).to_arrow().to_pylist()
        assert texts(mine) == texts(expected[-1]), cell.name
        assert len(expected[-1]) == len(facts.rows) + result.rows_inserted - result.rows_deleted, cell.name
        check_manifests(fork)
        if name in READ_BY_PYICEBERG:
            assert texts(fork.scan().to_arrow().to_pylist()) == texts(expected[-1]), cell.name
        if read_by_duckdb and not left_out(fork):
            assert duckdb.keys(fork) == key_columns(expected[-1]), cell.name
    filters: dict[str, Callable[[Row], bool]] = {
        "TRUE": lambda row: True,
        f"{facts.time} >= TIMESTAMP '2024-03-01'": lambda row: row[facts.time] is not None and row[facts.time] >= MARCH,
        "id = 7": lambda row: row["id"] == 7,
    }
    for where, keep in filters.items():
        found = forks.read(spark, where)
        for cell, rows, seen in zip(done, expected, found, strict=True):
            assert seen == texts([row for row in rows if keep(row)]), f"{cell.name}, read where {where}"
