"""Spark SQL predicates for the matrix tables: every column, every transform, every operator.

``{c}`` stands for the column; a table gets the predicates of the columns it has now, under the names they have now.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.fuzz import fuzzing
from tests.support.spark.matrix import TABLES, MatrixTable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table


@dataclass(frozen=True, slots=True)
class MatrixPredicate:
    """A predicate, and whether it uses expressions over columns, which statistics rarely decide."""

    text: str

    @property
    def computed(self) -> bool:
        return any(sign in self.text for sign in (" % ", " + ", "lower("))


_NULLS = ("{c} IS NULL", "{c} IS NOT NULL")
_TIMES = (
    "{c} = {k}'2024-02-29 00:00:00'",
    "{c} < {k}'1970-01-01 00:00:00'",
    "{c} <= {k}'1969-12-31 00:00:00.999999'",
    "{c} >= {k}'1969-12-31 00:00:00'",
    "{c} > {k}'1969-12-31 00:00:00' AND {c} < {k}'1969-12-31 00:00:01'",
    "{c} = {k}'1969-12-31 00:00:00.999999'",
    "{c} IN ({k}'1969-12-31 00:00:00.999999', {k}'2024-03-01 12:30:15.000001')",
    "{c} BETWEEN {k}'2024-03-01 00:00:00' AND {k}'2024-03-02 23:59:59.999999'",
    "{c} >= {k}'2024-03-01 00:00:00'",
    "{c} <> {k}'2024-02-29 00:00:00'",
    "NOT ({c} > {k}'1960-01-01 00:00:00')",
)
_FLOATS = (
    "{c} = 0.0D",
    "{c} <> 0.0D",
    "{c} < 0.0D",
    "{c} <= -0.0D",
    "{c} > 10.0D",
    "{c} >= double('NaN')",
    "{c} = double('NaN')",
    "{c} < double('Infinity')",
    "{c} IN (1.5D, double('NaN'))",
    "{c} NOT IN (1.5D, 0.0D)",
    "isnan({c})",
    "NOT isnan({c})",
    "{c} <=> 0.0D",
    "{c} BETWEEN -3.0D AND 0.5D",
)
_TEXTS = (
    "{c} = 'abc'",
    "{c} <> 'abc'",
    "{c} LIKE '😀%'",
    "{c} NOT LIKE '😀%'",
    "{c} LIKE 'é%'",
    "{c} LIKE 'a long string of one prefix, number t%'",
    "{c} NOT LIKE 'a long%'",
    "{c} >= 'a long string of one prefix, number two'",
    "{c} > '\uffff'",
    "{c} < ''",
    "{c} <= ''",
    "{c} = '\U0010ffff'",
    "{c} IN ('日本語テキスト', 'Abc', '')",
    "{c} NOT IN ('abc', '😀')",
    "{c} < 'B'",
    "lower({c}) = 'abc'",
)
_INTEGERS = (
    "{c} = 7",
    "{c} <> 7",
    "{c} < 0",
    "{c} <= -10",
    "{c} > 40",
    "{c} >= 2147483647",
    "{c} = -2147483648",
    "{c} IN (3, 4, 5, 1000)",
    "{c} NOT IN (3, 4, 5)",
    "{c} BETWEEN 5 AND 14",
    "{c} NOT BETWEEN -5 AND 1000000",
    "{c} <=> 9",
    "{c} % 2 = 0",
    "{c} = 7.5",
)
_REGIONS = (
    "{c} = 'eu'",
    "{c} <> 'eu'",
    "{c} IN ('us', 'n/a é=%')",
    "{c} NOT IN ('eu', 'us')",
    "{c} <=> NULL",
    "{c} LIKE 'n/a%'",
    "{c} > 'eu'",
)
_LOCAL = tuple(text.replace("{k}", "timestamp_ntz") for text in _TIMES)
_ZONED = tuple(text.replace("{k}", "timestamp") for text in _TIMES)

BY_COLUMN: dict[str, tuple[str, ...]] = {
    "id": (*_INTEGERS, "{c} > 1099511627776", *_NULLS),
    "region": _REGIONS + _NULLS,
    "ts": _ZONED + _NULLS,
    "happened": _ZONED + _NULLS,
    "at": _ZONED + _NULLS,
    "ts_ntz": _LOCAL + _NULLS,
    "day": (
        "{c} = date'1969-12-31'",
        "{c} < date'1970-01-01'",
        "{c} >= date'2024-03-01'",
        "{c} <> date'1970-01-01'",
        "{c} IN (date'1969-12-30', date'2024-02-29')",
        "{c} BETWEEN date'2024-02-28' AND date'2024-02-29'",
        *_NULLS,
    ),
    "v": _FLOATS + _NULLS,
    "f": (*_FLOATS, "{c} = CAST(0.1 AS FLOAT)", *_NULLS),
    "d": (
        "{c} = -5.00",
        "{c} < 0",
        "{c} > 12.345",
        "{c} BETWEEN 5 AND 9.99",
        "{c} IN (-4.63, 6.1)",
        "{c} <> -5.00",
        *_NULLS,
    ),
    "wide": ("{c} > 0", "{c} < -29.9e25", "{c} = 0.000001", "{c} <> 0.000001", *_NULLS),
    "n": _INTEGERS + _NULLS,
    "s": _TEXTS + _NULLS,
    "bin": ("{c} = X'6162'", "{c} > X'FFFF'", "{c} < X'00'", "{c} IN (X'', X'00')", "{c} <> X'6162'", *_NULLS),
    "flag": ("{c}", "NOT {c}", "{c} = false", "{c} <=> true", *_NULLS),
    "area": _REGIONS + _NULLS,
    "extra": ("{c} = 5", "{c} <> 5", "{c} > 5", "{c} IN (4, 5)", *_NULLS),
    "label": ("{c} = 'old'", "{c} <> 'old'", "{c} LIKE 'n%'", "{c} < 'o'", *_NULLS),
    "nested": ("{c}.b = 'abc'", "{c}.b IS NULL", *_NULLS),
}
TOGETHER = (
    "region = 'eu' AND id < 20",
    "region = 'eu' OR id < 0",
    "NOT (region = 'eu' AND id < 20)",
    "NOT (region = 'eu' OR flag)",
    "region = 'us' AND day >= date'2024-03-01'",
    "(region IS NULL OR n > 30) AND d > 0",
    "n + id > 40 AND region = 'eu'",
    "pk % 1000 < 3 AND id IS NOT NULL",
    "n > 5 AND n < 5",
    "id = 3 OR id IS NULL OR region LIKE 'n%'",
)


def predicates(columns: Collection[str]) -> list[MatrixPredicate]:
    """All predicates for a table with these columns."""
    single = [
        MatrixPredicate(text.replace("{c}", column))
        for column, texts in BY_COLUMN.items()
        if column in columns
        for text in texts
    ]
    region = "area" if "area" in columns else "region"
    return [*single, *(MatrixPredicate(text.replace("region", region)) for text in TOGETHER)]


# --- what Spark returns for the predicates, once per process

PLANNED_WITH_EVERY_PREDICATE = (
    "evolving_v2",
    "voids_v1",
    "dropped_sources_v2",
    "truncations_v2",
    "evolving_v2_no_statistics",
)
ROWS: dict[str, list[str]] = {}
MATCHES: dict[str, dict[str, list[int]]] = {}


def chosen_predicates(made: MatrixTable) -> list[str]:
    """All predicates for the representative tables, a different sixth for each of the others.

    With ``FLOEPLAN_FUZZ_SECONDS`` all predicates for all tables.
    """
    texts = [predicate.text for predicate in predicates(made.columns)]
    name = made.identifier.split(".")[1]
    if name in PLANNED_WITH_EVERY_PREDICATE or fuzzing.SECONDS:
        return texts
    return texts[TABLES.index(name) % 6 :: 6]


def load(made: MatrixTable, catalog: SqlCatalog) -> Table:
    return catalog.load_table(made.identifier)


def canonical(rows: pa.Table) -> list[str]:
    """Rows as a sorted list of texts: NaN equals itself, -0.0 differs from 0.0."""
    return sorted(map(repr, rows.select(sorted(rows.column_names)).to_pylist()))


def true_rows(made: MatrixTable) -> list[str]:
    """The rows of an unchanged table according to Iceberg's Spark reader; cached."""
    if made.identifier not in ROWS:
        ROWS[made.identifier] = canonical(made.rows())
    return ROWS[made.identifier]


def true_matches(made: MatrixTable) -> dict[str, list[int]]:
    """The rows of the chosen predicates; cached."""
    if made.identifier not in MATCHES:
        MATCHES[made.identifier] = made.matches(chosen_predicates(made))
    return MATCHES[made.identifier]
