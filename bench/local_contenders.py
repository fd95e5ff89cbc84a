"""The same queries on an Iceberg table with each tool, in a process of its own.

As a program (``python -m bench.local_contenders NAME TABLES``), it reads one query per line as JSON and prints rows, a
checksum of them, CPU seconds, wall seconds and the peak memory of the process. A result is an Arrow table, or the
tool's own data frame. The checksum is computed after the clocks are read; it does not depend on the order of rows.
A query starts from the location of the table's metadata file. With an endpoint, locations may be those of a bucket.

Daft pins an older pyarrow, so it runs in an environment of its own, and this module imports nothing but the tool.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Query:
    """Columns of the rows that match a condition: at most one of a region, an id and a day is given."""

    name: str
    table: str
    columns: tuple[str, ...] = ()
    region: str | None = None
    id: int | None = None
    day: tuple[str, str] | None = None
    limit: int | None = None
    count: bool = False

    def sql(self, cast: str = "TIMESTAMP ") -> str | None:
        """The condition as SQL text."""
        if self.region is not None:
            return f"region = '{self.region}'"
        if self.id is not None:
            return f"id = {self.id}"
        if self.day is not None:
            return f"ts >= {cast}'{self.day[0]}' AND ts < {cast}'{self.day[1]}'"
        return None


Answer = Callable[[Query], Any]


def floeplan(tables: dict[str, str], endpoint: str | None) -> Answer:
    import floeplan as fp

    catalog: Any = None
    if endpoint:
        from pyiceberg.catalog.noop import NoopCatalog

        catalog = NoopCatalog("s3", **s3_options(endpoint))

    def answer(query: Query) -> Any:
        table = fp.load_table(tables[query.table], catalog) if endpoint else tables[query.table]
        plan = fp.plan_scan(table, query.sql(), columns=query.columns or None)
        if query.count:
            return plan.count()
        if query.limit is not None:
            return plan.to_arrow_batch_reader(limit=query.limit).read_all()
        return plan.to_arrow()

    return answer


def pyiceberg(tables: dict[str, str], endpoint: str | None) -> Answer:
    def answer(query: Query) -> Any:
        where = query.sql(cast="") or "true"
        fields = query.columns or ("*",)
        scan = _static(tables[query.table], endpoint).scan(where, selected_fields=fields, limit=query.limit)
        return scan.count() if query.count else scan.to_arrow()

    return answer


def duckdb(tables: dict[str, str], endpoint: str | None) -> Answer:
    from importlib.resources import files

    import duckdb as db

    off = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
    connection = db.connect(config=off)
    for name in ("httpfs", "avro", "iceberg") if endpoint else ("avro", "iceberg"):
        folder = files(f"duckdb_extension_{name}").joinpath("extensions", f"v{db.__version__}")
        connection.load_extension(str(folder.joinpath(f"{name}.duckdb_extension")))
    connection.sql("SET TimeZone = 'UTC'")
    if endpoint:
        host = endpoint.removeprefix("http://")
        options = f"ENDPOINT '{host}', USE_SSL false, URL_STYLE 'path', REGION 'us-east-1', KEY_ID 'k', SECRET 's'"
        connection.sql(f"CREATE SECRET (TYPE s3, {options})")

    def answer(query: Query) -> Any:
        columns = "count(*)" if query.count else ", ".join(query.columns) or "*"
        where = query.sql("TIMESTAMPTZ ")
        sql = f"SELECT {columns} FROM iceberg_scan('{tables[query.table].removeprefix('file://')}')"
        sql += f" WHERE {where}" if where else ""
        sql += "" if query.limit is None else f" LIMIT {query.limit}"
        found = connection.sql(sql)
        return found.fetchone()[0] if query.count else found.to_arrow_table()

    return answer


def polars(tables: dict[str, str], endpoint: str | None) -> Answer:
    from datetime import datetime

    import polars as pl

    def answer(query: Query) -> Any:
        options = s3_options(endpoint) if endpoint else None
        frame = pl.scan_iceberg(tables[query.table], reader_override="native", storage_options=options)
        if query.region is not None:
            frame = frame.filter(pl.col("region") == query.region)
        if query.id is not None:
            frame = frame.filter(pl.col("id") == query.id)
        if query.day is not None:
            first, last = map(datetime.fromisoformat, query.day)
            frame = frame.filter((pl.col("ts") >= first) & (pl.col("ts") < last))
        if query.count:
            return frame.select(pl.len()).collect().item()
        if query.limit is not None:
            frame = frame.head(query.limit)
        return (frame.select(query.columns) if query.columns else frame).collect()

    return answer


def daft(tables: dict[str, str], endpoint: str | None) -> Answer:
    from datetime import datetime

    import daft as df
    from daft.io import IOConfig, S3Config

    s3 = S3Config(endpoint_url=endpoint, region_name="us-east-1", use_ssl=False, key_id="k", access_key="s")
    config = IOConfig(s3=s3) if endpoint else None

    def answer(query: Query) -> Any:
        frame = df.read_iceberg(_static(tables[query.table], endpoint), io_config=config)
        if query.region is not None:
            frame = frame.where(df.col("region") == query.region)
        if query.id is not None:
            frame = frame.where(df.col("id") == query.id)
        if query.day is not None:
            first, last = map(datetime.fromisoformat, query.day)
            frame = frame.where((df.col("ts") >= first) & (df.col("ts") < last))
        if query.count:
            return frame.count_rows()
        if query.limit is not None:
            frame = frame.limit(query.limit)
        return (frame.select(*query.columns) if query.columns else frame).to_arrow()

    return answer


def decompression(tables: dict[str, str], endpoint: str | None) -> Answer:
    """The floor of reading without a condition: Zstandard alone, on pages that are in memory. It returns no rows."""
    from concurrent.futures import ThreadPoolExecutor

    import floeplan as fp
    from bench.compressed_pages import compressed_pages
    from floeplan.parquet.pages.zstd import Decompressor

    files: list[dict[str, list[tuple[memoryview, int]]]] = []
    for file in fp.plan_scan(tables["clean"]).files:
        columns: dict[str, list[tuple[memoryview, int]]] = {}
        for column, page, size in compressed_pages(file.path):
            columns.setdefault(column, []).append((page, size))
        files.append(columns)

    def answer(query: Query) -> Any:
        def decompress(columns: dict[str, list[tuple[memoryview, int]]]) -> None:
            context = Decompressor()
            for name in query.columns or columns:
                for page, size in columns[name]:
                    context.decompress(page, size)

        with ThreadPoolExecutor() as pool:
            return len(list(pool.map(decompress, files)))

    return answer


def decoder(tables: dict[str, str], endpoint: str | None) -> Answer:
    """pyarrow's decoder alone, on the files of the plan."""
    from concurrent.futures import ThreadPoolExecutor

    import pyarrow as pa
    import pyarrow.parquet as pq

    import floeplan as fp

    paths = [file.path.removeprefix("file://") for file in fp.plan_scan(tables["clean"]).files]

    def answer(query: Query) -> Any:
        def read(path: str) -> pa.Table:
            file = pq.ParquetFile(path, binary_type=pa.large_binary(), pre_buffer=False)
            return file.read(columns=list(query.columns) or None, use_threads=False)

        with ThreadPoolExecutor() as pool:
            return pa.concat_tables(pool.map(read, paths))

    return answer


def polars_decoder(tables: dict[str, str], endpoint: str | None) -> Answer:
    """The same with Polars' decoder, all files at once, converted to Arrow's text."""
    import polars as pl

    import floeplan as fp

    paths = [file.path.removeprefix("file://") for file in fp.plan_scan(tables["clean"]).files]

    def answer(query: Query) -> Any:
        frame = pl.scan_parquet(paths, glob=False, hive_partitioning=False)
        return (frame.select(query.columns) if query.columns else frame).collect().to_arrow()

    return answer


CONTENDERS = {
    contender.__name__: contender
    for contender in (floeplan, pyiceberg, duckdb, polars, daft, decompression, decoder, polars_decoder)
}


def s3_options(endpoint: str) -> dict[str, str]:
    """The properties of PyIceberg for the store."""
    keys = {"s3.access-key-id": "k", "s3.secret-access-key": "s"}
    return {"s3.endpoint": endpoint, "s3.region": "us-east-1", **keys}


def _static(location: str, endpoint: str | None) -> Any:
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(location, properties=s3_options(endpoint) if endpoint else {})


def _checked(result: Any) -> tuple[int, list[object]]:
    """The number of rows, and sums over each column."""
    import pyarrow.compute as pc

    if isinstance(result, int):
        return result, []
    table = result if hasattr(result, "column_names") else result.to_arrow()
    sums: list[object] = []
    for name in sorted(table.column_names):
        column = table.column(name)
        if name in ("region", "note"):
            column = pc.binary_length(column.cast("large_string"))
        elif name == "ts":
            column = column.cast("int64")
        elif name == "amount":
            column = column.cast("double")
        total = pc.sum(column).as_py()
        sums.append(float(f"{total:.12g}") if isinstance(total, float) else total)
    return table.num_rows, sums


def _peak() -> int:
    """Peak memory of this process in MB; ``ru_maxrss`` would include that of the process that started it."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) // 1024


def main(name: str, tables: str, endpoint: str | None = None) -> None:
    answer = CONTENDERS[name](json.loads(tables), endpoint)
    for line in sys.stdin:
        query = Query(**json.loads(line))
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            result = answer(query)
        except Exception as error:
            found: dict[str, object] = {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        else:
            used = {"CPU s": time.process_time() - cpu, "wall s": time.perf_counter() - wall}
            # From the start of the process, with all imports.
            found = used | {"start CPU s": time.process_time(), "finished": time.time(), "peak MB": _peak()}
            found["rows"], found["sums"] = _checked(result)
            del result
        sys.stdout.write(f"{json.dumps(found)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
