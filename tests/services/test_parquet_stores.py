"""Parquet metadata over the wire: S3 with the properties of a FileIO, and plain HTTP."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer
from pyiceberg.io.pyarrow import PyArrowFileIO

from floeplan.errors import UnknownFileError
from floeplan.parquet.footer.footer import read_footer
from floeplan.parquet.footer.page_index import read_page_indexes
from floeplan.parquet.read.reader import read
from floeplan.parquet.source import ObjectStoreSource, open_source

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def parquet() -> bytes:
    out = io.BytesIO()
    table = pa.table({"x": range(50_000), "t": [f"text {i}" for i in range(50_000)]})
    pq.write_table(table, out, row_group_size=10_000, write_page_index=True, max_rows_per_page=1000, compression="none")
    return out.getvalue()


@pytest.fixture(scope="module")
def s3(parquet: bytes) -> Iterator[PyArrowFileIO]:
    server = ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    client = boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id="key", aws_secret_access_key="secret", region_name="us-east-1"
    )
    client.create_bucket(Bucket="lake")
    client.put_object(Bucket="lake", Key="a b/file.parquet", Body=parquet)
    yield PyArrowFileIO(
        {
            "s3.endpoint": endpoint,
            "s3.access-key-id": "key",
            "s3.secret-access-key": "secret",
            "s3.region": "us-east-1",
        }
    )
    server.stop()


def assert_reads(source: ObjectStoreSource, parquet: bytes) -> None:
    """Footer and page indexes of a remote file: two round trips, a fraction of its bytes."""
    footer = read_footer(source, tail=8 * 1024)
    indexes = read_page_indexes(source, footer, footer.leaves, range(footer.num_row_groups))
    assert footer.num_rows == 50_000
    assert source.size == len(parquet)
    assert sum(len(index.row_count) for index in indexes.values()) == 100
    assert source.counters.round_trips <= 2
    assert source.counters.bytes < len(parquet) / 10
    ranges = [(i * 20_000, 100) for i in range(50)]
    assert [bytes(part) for part in source.read_ranges(ranges)] == [parquet[a : a + n] for a, n in ranges]


def test_s3_with_the_properties_of_a_file_io(s3: PyArrowFileIO, parquet: bytes) -> None:
    source = open_source("s3://lake/a b/file.parquet", s3)
    assert isinstance(source, ObjectStoreSource)
    assert_reads(source, parquet)
    with pytest.raises(UnknownFileError, match="s3://lake/nothing"):
        open_source("s3://lake/nothing.parquet", s3).read_suffix(8)


def test_rows_of_an_s3_file_are_read_page_by_page(s3: PyArrowFileIO, parquet: bytes) -> None:
    result = read("s3://lake/a b/file.parquet", "x = 12345", io=s3)
    assert result.table.to_pylist() == [{"x": 12345, "t": "text 12345"}]
    assert result.round_trips <= 3
    assert result.bytes_read < len(parquet) / 2


@pytest.fixture
def http(parquet: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/file.parquet":
                self.send_error(404)
                return
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            start = int(first) if first else max(0, len(parquet) - int(last))
            end = int(last) + 1 if first and last else len(parquet)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(parquet)}")
            self.send_header("Content-Length", str(end - start))
            self.end_headers()
            self.wfile.write(parquet[start:end])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_http(http: str, parquet: bytes) -> None:
    source = open_source(f"{http}/file.parquet")
    assert isinstance(source, ObjectStoreSource)
    assert_reads(source, parquet)
    with pytest.raises(UnknownFileError, match=r"nothing\.parquet"):
        open_source(f"{http}/nothing.parquet").read_suffix(8)
