"""The tables of TPC-H with three partition specs each, and 2 % of their rows deleted by position."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TypeGuard

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

import floeplan as fp

SPECS = {
    "lineitem": ("{period}(l_shipdate)", "l_returnflag"),
    "orders": ("years(o_orderdate)", "o_orderstatus"),
    "customer": ("c_mktsegment", "bucket(4, c_custkey)"),
    "part": ("p_mfgr", "bucket(4, p_partkey)"),
    "partsupp": ("bucket(4, ps_partkey)", "truncate(1000, ps_suppkey)"),
    "supplier": ("s_nationkey", "bucket(2, s_suppkey)"),
    "nation": ("n_regionkey", "bucket(2, n_nationkey)"),
    "region": ("r_name", "bucket(2, r_regionkey)"),
}
"""The partition fields that each table gets one after the other; a third of the rows is written with each spec."""
DELETED = {
    "lineitem": "l_orderkey % 50 = 7",
    "orders": "o_orderkey % 50 = 7",
    "customer": "c_custkey % 50 = 7",
    "part": "p_partkey % 50 = 7",
    "partsupp": "ps_partkey % 50 = 7",
    "supplier": "s_suppkey % 50 = 7",
}
"""The deleted rows; nation and region keep all of theirs."""


def generate(folder: Path, scale: float) -> dict[str, Path]:
    """Generate the data as Parquet files; a folder that has them is left as it is."""
    if not (folder / "done").exists():
        command = Path(sys.executable).with_name("tpchgen-cli")
        arguments = ["parquet", f"--scale-factor={scale}", f"--output-dir={folder}"]
        subprocess.run([command, *arguments], check=True, capture_output=True)
        (folder / "done").touch()
    return {name: folder / f"{name}.parquet" for name in SPECS}


def build(
    catalog: Catalog, namespace: str, files: dict[str, Path], version: int, period: str = "years"
) -> dict[str, Table]:
    """Create the evolved tables of a format version; ``period`` is the transform of the date of a line item."""
    catalog.create_namespace_if_not_exists(namespace)
    tables = {}
    for name, file in files.items():
        rows = pq.read_table(file)
        created = catalog.create_table(f"{namespace}.{name}", _plain(rows.schema))
        if version > 2:
            fp.upgrade_format(created, to=version)
        third = -(-rows.num_rows // 3)
        for number, field in enumerate((None, *SPECS[name])):
            if field is not None:
                term = field.format(period=period)
                fp.sql(f"ALTER TABLE {namespace}.{name} ADD PARTITION FIELD {term}", catalog=catalog)
            part = rows.slice(number * third, third)
            if part.num_rows:
                fp.append(catalog.load_table(f"{namespace}.{name}"), part.cast(_plain(rows.schema)))
        if name in DELETED:
            fp.delete(catalog.load_table(f"{namespace}.{name}"), DELETED[name], mode="merge-on-read")
        tables[name] = catalog.load_table(f"{namespace}.{name}")
    return tables


def _plain(schema: pa.Schema) -> pa.Schema:
    """Without views of strings, which Iceberg tables do not have."""
    views = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return pa.schema([pa.field(field.name, views.get(field.type, field.type)) for field in schema])


def same_rows(ours: Sequence[Sequence[object]], theirs: Sequence[Sequence[object]]) -> bool:
    """Whether two results have the same rows in the same order; averages may differ in their last digits."""
    if len(ours) != len(theirs):
        return False
    pairs = ((a, b) for left, right in zip(ours, theirs, strict=True) for a, b in zip(left, right, strict=True))
    return all(a == b or (_is_number(a) and _is_number(b) and _is_close(a, b)) for a, b in pairs)


def _is_close(one: float | Decimal, other: float | Decimal) -> bool:
    # Spark rounds averages and quotients of decimals to 6 digits; DuckDB returns them as floats.
    rounded = isinstance(one, Decimal) and isinstance(other, float)
    return math.isclose(float(one), float(other), rel_tol=1e-9, abs_tol=5.1e-7 if rounded else 0)


def _is_number(value: object) -> TypeGuard[float | Decimal]:
    return isinstance(value, float | int | Decimal)
