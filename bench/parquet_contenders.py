"""The same three queries with each tool, over a local file or the counting store.

As a program, it runs one query once, cold, in a new process, and prints rows and CPU seconds as JSON; the tool is
imported before the clock starts.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.request import Request, urlopen

import pyarrow as pa

from bench.object_store import BUCKET

Answer = Callable[[], int]
FILE = "events.parquet"


@dataclass(frozen=True, slots=True)
class Query:
    """Some columns of the rows where one column lies in a closed range."""

    columns: tuple[str, ...]
    column: str
    low: int
    high: int

    @property
    def where(self) -> str:
        if self.low == self.high:
            return f"{self.column} = {self.low}"
        return f"{self.column} >= {self.low} AND {self.column} <= {self.high}"

    @property
    def filters(self) -> list[tuple[str, str, int]]:
        if self.low == self.high:
            return [(self.column, "=", self.low)]
        return [(self.column, ">=", self.low), (self.column, "<=", self.high)]


def floeplan(query: Query, location: str, endpoint: str | None) -> Answer:
    from floeplan.parquet.read import reader

    io = _file_io(endpoint) if endpoint else None
    path = f"s3://{BUCKET}/{FILE}" if endpoint else location
    return lambda: reader.read(path, where=query.where, columns=query.columns, io=io).table.num_rows


def pyarrow(query: Query, location: str, endpoint: str | None) -> Answer:
    import pyarrow.parquet as pq
    from pyarrow import fs

    if endpoint is None:
        return lambda: pq.read_table(location, columns=list(query.columns), filters=query.filters).num_rows
    host = endpoint.removeprefix("http://")
    store = fs.S3FileSystem(endpoint_override=host, scheme="http", anonymous=True, region="us-east-1")
    return lambda: (
        pq.read_table(f"{BUCKET}/{FILE}", columns=list(query.columns), filters=query.filters, filesystem=store).num_rows
    )


def polars(query: Query, location: str, endpoint: str | None) -> Answer:
    import polars as pl

    path = f"s3://{BUCKET}/{FILE}" if endpoint else location
    options = {"aws_endpoint_url": endpoint, "aws_region": "us-east-1"} if endpoint else {}
    options |= {"aws_allow_http": "true", "aws_skip_signature": "true"} if endpoint else {}

    def answer() -> int:
        scan = pl.scan_parquet(path, storage_options=options or None)
        matching = scan.filter(pl.col(query.column).is_between(query.low, query.high))
        return matching.select(query.columns).collect().height

    return answer


def datafusion(query: Query, location: str, endpoint: str | None) -> Answer:
    from datafusion import SessionContext
    from datafusion.object_store import AmazonS3

    def answer() -> int:
        context = SessionContext()
        if endpoint:
            keys = {"access_key_id": "-", "secret_access_key": "-"}
            store = AmazonS3(bucket_name=BUCKET, region="us-east-1", endpoint=endpoint, allow_http=True, **keys)
            context.register_object_store("s3://", store, BUCKET)
        context.register_parquet("t", f"s3://{BUCKET}/{FILE}" if endpoint else location)
        return context.sql(f"SELECT {', '.join(query.columns)} FROM t WHERE {query.where}").to_arrow_table().num_rows

    return answer


def duckdb(query: Query, location: str, endpoint: str | None) -> Answer:
    import duckdb as db

    path = f"bench://{FILE}" if endpoint else location
    connection = db.connect()
    if endpoint:
        connection.register_filesystem(_ranged_filesystem(endpoint))
    sql = f"SELECT {', '.join(query.columns)} FROM '{path}' WHERE {query.where}"
    return lambda: connection.sql(sql).to_arrow_table().num_rows


CONTENDERS = {contender.__name__: contender for contender in (floeplan, pyarrow, polars, datafusion, duckdb)}


def _file_io(endpoint: str) -> Any:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    return PyArrowFileIO({"s3.endpoint": endpoint, "s3.region": "us-east-1", "s3.anonymous": "true"})


def _ranged_filesystem(endpoint: str) -> Any:
    """DuckDB's access to the store: every read is one ranged request, without cache or read-ahead."""
    from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

    class RangedFile(AbstractBufferedFile):  # type: ignore[misc]
        def _fetch_range(self, start: int, end: int) -> bytes:
            return bytes(_ask(self.fs.url(self.path), {"Range": f"bytes={start}-{end - 1}"}).read())

    class RangedFileSystem(AbstractFileSystem):  # type: ignore[misc]
        protocol = "bench"
        cachable = False

        def url(self, path: str) -> str:
            return f"{endpoint}/{BUCKET}/{path.removeprefix('bench://')}"

        def info(self, path: str, **_: Any) -> dict[str, Any]:
            size = int(_ask(self.url(path), {}, "HEAD").headers["Content-Length"])
            return {"name": path, "size": size, "type": "file"}

        def glob(self, path: str, **_: Any) -> list[str]:
            return [path]

        def modified(self, path: str) -> datetime:
            return datetime(2024, 1, 1)

        def _open(self, path: str, mode: str = "rb", **_: Any) -> RangedFile:
            return RangedFile(self, path, mode, cache_type="none", size=self.info(path)["size"])

    return RangedFileSystem()


def _ask(url: str, headers: dict[str, str], method: str = "GET") -> Any:
    return urlopen(Request(url, headers=headers, method=method))


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main(contender: str, query: str, location: str, endpoint: str | None) -> None:
    pa.array([0])  # the first conversion imports pandas if installed, which is not part of a query
    answer = CONTENDERS[contender](Query(**json.loads(query)), location, endpoint)
    before = _cpu_seconds()
    rows = answer()
    print(json.dumps({"rows": rows, "cpu": _cpu_seconds() - before}))


if __name__ == "__main__":
    main(*sys.argv[1:4], sys.argv[4] if len(sys.argv) > 4 else None)
