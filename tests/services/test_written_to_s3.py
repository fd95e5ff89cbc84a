"""Data files, position deletes and deletion vectors in an object store; a failed write leaves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import boto3
import numpy as np
import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from floeplan.errors import BadInputError
from floeplan.metadata.manifests.entries import EntriesTable
from floeplan.scan.delete_files import decode_deletion_vector
from floeplan.write.data_files import write_data_files
from floeplan.write.position_deletes import write_deletion_vectors, write_position_deletes
from floeplan.write.target import WriteTarget
from tests.support.tables.layouts import EVENTS, events, target

pytestmark = pytest.mark.services

BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"), spec_id=0)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def store(endpoint: str) -> Iterator[FileIO]:
    """An empty bucket."""
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=endpoint, **keys)
    client.create_bucket(Bucket="lake")
    settings = {"s3.endpoint": endpoint, "s3.access-key-id": "a", "s3.secret-access-key": "b", "s3.region": "us-east-1"}
    yield load_file_io(settings | {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"})
    for entry in client.list_objects_v2(Bucket="lake").get("Contents", ()):
        client.delete_object(Bucket="lake", Key=entry["Key"])
    client.delete_bucket(Bucket="lake")
    client.close()


def place(folder: Path, io: FileIO, version: int) -> WriteTarget:
    return replace(target(folder, EVENTS, BY_REGION, version=version), io=io, location="s3://lake/db/events")


def read(io: FileIO, path: str) -> bytes:
    with io.new_input(path).open() as stream:
        return stream.read()


def test_files_arrive_with_the_size_their_entries_state(tmp_path: Path, store: FileIO) -> None:
    entries = write_data_files(place(tmp_path, store, 2), [events(300)], file_name_token="t")
    found = []
    for row in entries.table.to_pylist():
        assert row["file_path"].startswith("s3://lake/db/events/data/region=")
        assert len(store.new_input(row["file_path"])) == row["file_size_in_bytes"]
        with store.new_input(row["file_path"]).open() as stream:
            found += pq.read_table(stream, columns=["id"]).column(0).to_pylist()
    assert sorted(found) == list(range(300))


def test_deletes_arrive(tmp_path: Path, store: FileIO) -> None:
    data = write_data_files(place(tmp_path / "2", store, 2), [events(300)], file_name_token="t")
    gone = [np.array([1, 4])] * len(data)
    deletes = write_position_deletes(place(tmp_path / "d", store, 2), data, gone, file_name_token="d")
    assert deletes.record_count.tolist() == [2] * len(data)
    vectors = write_deletion_vectors(place(tmp_path / "3", store, 3), data, gone, file_name_token="d")
    (path,) = set(vectors.path.to_pylist())
    encoded = read(store, path)
    for offset, size in zip(vectors.ints("content_offset"), vectors.ints("content_size_in_bytes"), strict=True):
        assert list(decode_deletion_vector(encoded[offset : offset + size], path)) == [1, 4]
    assert _sizes(store, deletes) == deletes.ints("file_size_in_bytes").tolist()


def _sizes(store: FileIO, entries: EntriesTable) -> list[int]:
    return [len(store.new_input(path)) for path in entries.path.to_pylist()]


def test_a_failed_write_leaves_no_file_in_the_bucket(tmp_path: Path, store: FileIO, endpoint: str) -> None:
    small = place(tmp_path, store, 2)
    small = replace(small, properties={"write.target-file-size-bytes": "1000"})
    wrong = events(3).rename_columns(["v", "region", "ts", "id"])
    with pytest.raises(BadInputError, match="column id is required"):
        write_data_files(small, [events(2000), wrong], file_name_token="t")
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=endpoint, **keys)
    left = [entry["Key"] for entry in client.list_objects_v2(Bucket="lake").get("Contents", ())]
    assert [key for key in left if not key.endswith("/")] == []  # Arrow leaves markers for folders
    client.close()
