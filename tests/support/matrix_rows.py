"""The rows of the peer matrix: small batches holding every value that has ever fooled a pruner.

A batch is the same in every run. ``pk`` is unique over all batches, never null and never a partition source, so a set
of rows is a set of ``pk``. Ids, dates and numbers drift from batch to batch (files differ, so there is something to
prune), and every batch repeats a few old ones (late data).
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa

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
    moment = _moment(number, i)
    local = _moment(number, i + 3)
    return {
        "pk": number * 1000 + i,
        "id": None if i == 11 else (2**40 + k if i == 12 else k // 2 - 4),
        "region": REGIONS[_cluster(number, i) % len(REGIONS)],
        "ts": moment and moment.replace(tzinfo=UTC),
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
    """Neighbouring rows mostly share a value, so that a partition has a few rows."""
    return number + i // 5


def _moment(number: int, i: int) -> datetime | None:
    """Odd batches write a new day, with late rows; even batches walk through the awkward moments."""
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
