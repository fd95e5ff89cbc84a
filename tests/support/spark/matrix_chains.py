"""The histories of the matrix tables, as calls of a ``Builder``.

A chain calls ``change_rows`` once it has files of several specs. Where Iceberg 1.12 rejects a step, the chain avoids it
and a comment names the reason.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from tests.support.spark.matrix import Builder


# --- the ways rows are deleted, each in files of every spec a table has

MERGE_ON_READ = {
    f"write.{command}.{key}": value
    for command in ("delete", "update", "merge")
    for key, value in {"mode": "merge-on-read", "distribution-mode": "none"}.items()
}
LAST_BATCH = 9


def rewritten(table: Builder) -> None:
    """Copy-on-write: one file is replaced, so manifests contain DELETED and EXISTING entries."""
    table.sql("DELETE FROM {t} WHERE pk = 1003")


def by_position(table: Builder, granularity: str) -> None:
    """Two deletes and an update over files of every spec, then an append they do not apply to."""
    table.set(MERGE_ON_READ | {"write.delete.granularity": granularity})
    table.sql("DELETE FROM {t} WHERE pk % 5 = 1")
    table.sql("UPDATE {t} SET flag = NOT flag WHERE pk % 7 = 2")
    table.sql("DELETE FROM {t} WHERE pk % 1000 IN (13, 18)")
    table.write(LAST_BATCH)


def by_position_in_file(table: Builder) -> None:
    by_position(table, "file")


def by_position_in_partition(table: Builder) -> None:
    by_position(table, "partition")


def upgraded_to_vectors(table: Builder) -> None:
    """Position deletes from format 2, then deletion vectors over some of the same files and some others."""
    by_position(table, "partition")
    table.set({"format-version": "3"})
    table.sql("DELETE FROM {t} WHERE pk % 5 = 3 AND pk < 3000")
    table.sql("DELETE FROM {t} WHERE pk = 9019")


def upgraded_to_parquet_manifests(table: Builder) -> None:
    """Deletion vectors in Avro manifests from format 3, then more in Parquet manifests beside them."""
    by_position(table, "file")
    table.set({"format-version": "4"})
    table.sql("DELETE FROM {t} WHERE pk % 5 = 3 AND pk < 3000")
    table.sql("UPDATE {t} SET flag = NOT flag WHERE pk % 11 = 4")


def by_equality(table: Builder) -> None:
    """Global deletes and deletes of one partition in every partitioned spec; then insert deleted keys again.

    Keys: one column, two columns, null keys, keys without rows. A delete does not apply to rows written later.
    """
    table.delete_equal([{"id": -4}, {"id": 3}, {"id": None}])
    table.delete_equal([{"region": "eu", "id": 1}, {"region": None, "id": 11}, {"region": "nowhere", "id": 1}])
    for file, keys in table.keys_of_one_file_per_spec().items():
        table.delete_equal([{"pk": pk} for pk in (*keys, 1, 2004)], beside=file)
    table.write(LAST_BATCH)
    table.write(0)
    table.delete_equal([{"pk": 9002}, {"pk": 4}])


# --- the rows: small batches with every value that has been pruned wrongly by some engine
#
# A batch is the same in every run. ``pk`` is unique over all batches, never null and never a partition source, so a set
# of rows is a set of ``pk``. Ids, dates and numbers drift from batch to batch (files differ, so there is something to
# prune), and every batch repeats a few old ones (late data).


ROWS = 20
COLUMNS = {
    "pk": "INT NOT NULL",
    "id": "BIGINT",
    "region": "STRING",
    "ts": "TIMESTAMP",
    "ts_ntz": "TIMESTAMP_NTZ",
    "day": "DATE",
    "v": "DOUBLE",
    "f": "FLOAT",
    "d": "DECIMAL(9,2)",
    "wide": "DECIMAL(38,6)",
    "n": "INT",
    "s": "STRING",
    "bin": "BINARY",
    "flag": "BOOLEAN",
    "nested": "STRUCT<a: INT, b: STRING>",
    "tags": "ARRAY<STRING>",
}

REGIONS = ("eu", "us", "ap", None, "n/a é=%")
# One second after midnight and x.999999 before 1970: Iceberg Java stores the day (and hour) before.
JAVA_DAY_FAULT = datetime(1969, 12, 31, 0, 0, 0, 999999)
TIMES = (
    datetime(2024, 2, 28, 23, 59, 59, 999999),
    datetime(2024, 2, 29, 0, 0),
    datetime(2024, 3, 1, 12, 30, 15, 1),
    None,
    JAVA_DAY_FAULT,
    datetime(1969, 12, 31, 23, 59, 59, 999999),
    datetime(1970, 1, 1),
    datetime(1965, 3, 5, 4, 5, 6, 7),
)
DOUBLES = (1.5, math.nan, 0.0, -0.0, None, math.inf, -math.inf, -2.5, 1e300)
FLOATS = (0.1, math.nan, -0.0, 0.0, None, 16777216.0, math.inf, -7.25)
INTEGERS = (-(2**31), 2**31 - 1, None, 0, -1, -10, 7)
STRINGS = (
    "abc",
    "😀x",
    "😀",
    "éa",
    None,
    "",
    "a long string of one prefix, number one",
    "a long string of one prefix, number two",
    "\uffff\uffff\uffff",
    "日本語テキスト",
    "Abc",
    "\U0010ffff" * 20,
)
BYTES = (b"ab", b"\xff\xff", None, b"", b"\x00", b"\xff" * 20)


def batch(number: int, rows: int = ROWS) -> pa.Table:
    """The rows of one insert."""
    return pa.Table.from_pylist([_row(number, i) for i in range(rows)], _SCHEMA)


def _row(number: int, i: int) -> dict[str, object]:
    k = number * ROWS + i
    timestamp = _timestamp(number, i)
    local = _timestamp(number, i + 3)
    return {
        "pk": number * 1000 + i,
        "id": None if i == 11 else (2**40 + k if i == 12 else k // 2 - 4),
        "region": REGIONS[_cluster(number, i) % len(REGIONS)],
        "ts": timestamp and timestamp.replace(tzinfo=UTC),
        "ts_ntz": local,
        "day": local and (date(1969, 12, 30) + timedelta(days=i % 4) if i % 5 == 0 else local.date()),
        "v": math.nan if number == 1 and i < 8 else (DOUBLES[i % 9] if i % 2 else k * 0.5),
        "f": None if number == 2 and i < 8 else (FLOATS[i % 8] if i % 3 else k * 0.25),
        "d": None if i == 9 else Decimal(k * 37 - 500).scaleb(-2),
        "wide": None if i == 4 else Decimal(10) ** 25 * (k - 30) + Decimal("0.000001"),
        "n": INTEGERS[k % 7] if i % 4 == 3 else k - 15,
        "s": STRINGS[(i // 2 + number) % len(STRINGS)],
        "bin": BYTES[(i // 3 + number) % len(BYTES)],
        "flag": (True, False, None)[(i // 4 + number) % 3],
        "nested": None if i == 5 else {"a": None if i == 6 else k, "b": STRINGS[k % 7]},
        "tags": None if i == 7 else [str(k)] * (i % 3),
    }


def _cluster(number: int, i: int) -> int:
    """Adjacent rows mostly share a value, so that a partition has a few rows."""
    return number + i // 5


def _timestamp(number: int, i: int) -> datetime | None:
    """Odd batches write a new day with late rows; even batches iterate over edge-case timestamps."""
    if number % 2 and i % 4:
        return datetime(2024, 3, 1 + number, i % 24, 0, i)
    return TIMES[(i // 2) % len(TIMES)]


_SCHEMA = pa.schema(
    [
        pa.field("pk", pa.int32(), nullable=False),
        pa.field("id", pa.int64()),
        pa.field("region", pa.string()),
        pa.field("ts", pa.timestamp("us", "UTC")),
        pa.field("ts_ntz", pa.timestamp("us")),
        pa.field("day", pa.date32()),
        pa.field("v", pa.float64()),
        pa.field("f", pa.float32()),
        pa.field("d", pa.decimal128(9, 2)),
        pa.field("wide", pa.decimal128(38, 6)),
        pa.field("n", pa.int32()),
        pa.field("s", pa.string()),
        pa.field("bin", pa.binary()),
        pa.field("flag", pa.bool_()),
        pa.field("nested", pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.string())])),
        pa.field("tags", pa.list_(pa.string())),
    ]
)


# --- the histories


def evolving(table: Builder) -> None:
    """Unpartitioned → identity → day and bucket → month → month under another name; late data into an old spec."""
    table.create()
    table.write(0)
    table.alter("ADD PARTITION FIELD region")
    table.write(1)
    table.alter(
        "REPLACE PARTITION FIELD region WITH days(ts) AS ts_day", "ADD PARTITION FIELD bucket(8, id) AS id_bucket"
    )
    table.write(2)
    table.alter("REPLACE PARTITION FIELD ts_day WITH months(ts) AS ts_month", "DROP PARTITION FIELD id_bucket")
    table.write(3)
    table.alter("REPLACE PARTITION FIELD ts_month WITH months(ts) AS when_month")
    table.write(4)
    table.write(5, spec_id=1)
    table.change_rows()


def voids(table: Builder) -> None:
    """Fields are added, removed and added again: format 1 leaves void fields, other formats return to spec 0."""
    table.create()
    table.write(0)
    table.alter("ADD PARTITION FIELD region")
    table.write(1)
    table.alter("ADD PARTITION FIELD bucket(4, id) AS id_bucket")
    table.write(2)
    table.alter("DROP PARTITION FIELD region")
    table.write(3)
    table.alter("DROP PARTITION FIELD id_bucket")
    table.write(4)
    table.alter("ADD PARTITION FIELD region")
    table.write(5)
    table.alter("DROP PARTITION FIELD region")
    table.change_rows()


def dropped_sources(table: Builder) -> None:
    """Source columns dropped, re-added under the same name with another id, renamed and promoted.

    Rows are deleted before the columns go: with the identity source of an old spec gone, Spark's merge-on-read commands
    fail ("Cannot find field 1000: region: optional unknown"). In format 1 a dropped field stays as a void on a column
    that no longer exists, and Iceberg 1.12 cannot write to such a spec ("Cannot build accessor for field"): there later
    batches use the unpartitioned spec 0.
    """
    late = 0 if table.version == 1 else None
    table.create(COLUMNS | {"id": "INT"})
    table.fill(id="try_cast(id AS INT)")
    table.write(0)
    table.alter("ADD PARTITION FIELD region", "ADD PARTITION FIELD truncate(2, s) AS s_prefix")
    table.write(1)
    table.alter(
        "DROP PARTITION FIELD region", "DROP PARTITION FIELD s_prefix", "ADD PARTITION FIELD bucket(4, id) AS id_bucket"
    )
    table.alter("ADD PARTITION FIELD n")
    table.fill(n="pmod(n, 3) - 1")
    table.write(2)
    table.change_rows()
    table.alter("DROP COLUMN region", "ADD COLUMN region STRING", "RENAME COLUMN ts TO happened")
    table.alter("ALTER COLUMN id TYPE BIGINT", "ALTER COLUMN n TYPE BIGINT", "ALTER COLUMN f TYPE DOUBLE")
    table.alter("ALTER COLUMN d TYPE DECIMAL(12,2)")
    table.fill(id="id", happened="ts")
    table.write(3, spec_id=late)
    table.alter("ADD PARTITION FIELD region AS new_region", "ADD PARTITION FIELD days(happened) AS happened_day")
    table.alter("DROP PARTITION FIELD id_bucket", "DROP PARTITION FIELD n")
    table.fill(n="n")
    table.write(4, spec_id=late)
    table.alter("RENAME COLUMN happened TO at", "DROP COLUMN s")
    table.alter("RENAME COLUMN nested.a TO c", "DROP COLUMN nested.b", "ADD COLUMN nested.b STRING")
    table.fill(at="ts", nested="CASE WHEN nested IS NOT NULL THEN named_struct('c', nested.a, 'b', nested.b) END")
    table.write(5, spec_id=late)


def truncations(table: Builder) -> None:
    """Truncate over every type, the calendar transforms, identity over floats, and two fields on one source."""
    table.create()
    table.alter("ADD PARTITION FIELD truncate(2, s) AS s_prefix")
    table.write(0)
    table.alter("REPLACE PARTITION FIELD s_prefix WITH truncate(10, n) AS n_tens")
    table.alter("ADD PARTITION FIELD truncate(500, d) AS d_fives")
    table.write(1)
    table.alter("REPLACE PARTITION FIELD n_tens WITH hours(ts) AS ts_hour", "DROP PARTITION FIELD d_fives")
    table.write(2)
    table.alter(
        "REPLACE PARTITION FIELD ts_hour WITH years(ts_ntz) AS local_year",
        "ADD PARTITION FIELD months(day) AS day_month",
    )
    table.write(3)
    table.alter(
        "REPLACE PARTITION FIELD local_year WITH v",
        "REPLACE PARTITION FIELD day_month WITH truncate(1, bin) AS bin_head",
    )
    table.write(4)
    table.alter("REPLACE PARTITION FIELD v WITH f", "REPLACE PARTITION FIELD bin_head WITH flag")
    table.write(5)
    table.alter(
        "REPLACE PARTITION FIELD f WITH truncate(10, id) AS id_tens",
        "REPLACE PARTITION FIELD flag WITH bucket(4, id) AS id_bucket",
    )
    table.write(6)
    table.change_rows()


def imported(table: Builder) -> None:
    """Files of a Hive-style folder added unchanged: no field ids, INT96 timestamps, no partition column."""
    table.create()
    table.alter("ADD PARTITION FIELD region")
    table.add_files(1, partitioned_by="region")
    table.alter("REPLACE PARTITION FIELD region WITH bucket(4, id) AS id_bucket")
    table.write(2)
    table.change_rows()
    table.alter("RENAME COLUMN region TO area", "DROP PARTITION FIELD id_bucket", "ADD PARTITION FIELD area")
    table.fill(area="region")
    table.write(3)


def defaults(table: Builder) -> None:
    """Columns added with an initial default, which old files do not hold; one of them becomes a partition source."""
    table.create()
    table.write(0)
    table.add_columns(extra=5, label="old")
    table.alter("ADD PARTITION FIELD extra")
    table.fill(extra="CAST(pk % 3 AS INT) + 4", label="IF(pk % 2 = 0, 'new', NULL)")
    table.write(1)
    table.alter("REPLACE PARTITION FIELD extra WITH truncate(1, label) AS label_head")
    table.write(2)
    table.change_rows()


def gaps(table: Builder) -> None:
    """Spec ids with gaps that do not start at 0: unreferenced specs and schemas are removed from the metadata."""
    table.create()
    table.alter("ADD PARTITION FIELD region", "ADD PARTITION FIELD bucket(4, id) AS id_bucket")
    table.write(0)
    table.alter("ADD COLUMN extra INT", "DROP PARTITION FIELD region", "DROP COLUMN extra")
    table.alter("REPLACE PARTITION FIELD id_bucket WITH days(ts) AS ts_day")
    table.write(1)
    table.expire_and_clean()
