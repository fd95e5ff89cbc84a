"""Manifests in an object store: fetched concurrently, decoded in order, with clear errors."""

from __future__ import annotations

from collections.abc import Iterator

import boto3
import numpy as np
import pytest
from moto.server import ThreadedMotoServer
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.partitioning import PartitionSpec

from floeplan.errors import CorruptMetadataError
from floeplan.metadata.manifests.manifest_list import read_manifest_list
from floeplan.metadata.manifests.reader import read_entries
from floeplan.partition.union import UnionPartitionType
from tests.support.tables.manifests import Writer

pytestmark = pytest.mark.services

UNPARTITIONED = UnionPartitionType.of([PartitionSpec(spec_id=0)], {})
MANIFESTS = 40


@pytest.fixture(scope="module")
def store() -> Iterator[FileIO]:
    """A bucket with forty manifests of one entry each, and their list."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", **keys)
    client.create_bucket(Bucket="lake")
    writer, listed = Writer(), []
    for number in range(MANIFESTS):
        data = writer.manifest([writer.entry(f"file-{number}")])
        client.put_object(Bucket="lake", Key=f"m{number}.avro", Body=data)
        listed.append({"manifest_path": f"s3://lake/m{number}.avro", "manifest_length": len(data)})
    gone = [*listed[:3], {"manifest_path": "s3://lake/gone.avro"}]
    client.put_object(Bucket="lake", Key="list.avro", Body=writer.manifest_list(listed))
    client.put_object(Bucket="lake", Key="broken.avro", Body=writer.manifest_list(gone))
    client.close()
    yield load_file_io(
        {
            "s3.endpoint": f"http://{host}:{port}",
            "s3.access-key-id": "a",
            "s3.secret-access-key": "b",
            "s3.region": "us-east-1",
            "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
        }
    )
    server.stop()


@pytest.mark.parametrize("workers", [1, 3, 64])
def test_entries_are_in_the_order_of_the_manifests(store: FileIO, workers: int) -> None:
    manifests = read_manifest_list("s3://lake/list.avro", store)
    entries = read_entries(manifests, UNPARTITIONED, io=store, max_workers=workers)
    assert entries.path.to_pylist() == [f"file-{number}" for number in range(MANIFESTS)]
    some = read_entries(manifests, UNPARTITIONED, io=store, max_workers=workers, rows=np.array([7, 2]))
    assert some.path.to_pylist() == ["file-7", "file-2"]


def test_a_missing_manifest_is_named(store: FileIO) -> None:
    manifests = read_manifest_list("s3://lake/broken.avro", store)
    with pytest.raises(CorruptMetadataError, match=r"s3://lake/gone.avro does not exist"):
        read_entries(manifests, UNPARTITIONED, io=store)
