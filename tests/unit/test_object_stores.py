"""Metadata from S3: which files are left to the FileIO, and when the event loop of requests starts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from floeplan import object_stores
from floeplan.object_stores import begin_fetch, fetch

pytestmark = pytest.mark.unit

KEYS = {"s3.access-key-id": "key", "s3.secret-access-key": "secret", "s3.endpoint": "http://127.0.0.1:1"}
FILE = "s3://lake/m0.avro"


class OwnIO(PyArrowFileIO):
    """A FileIO that may read other bytes than those of the store."""


@pytest.mark.parametrize(
    ("location", "io"),
    [
        ("file:///m0.avro", PyArrowFileIO(KEYS)),
        ("gs://lake/m0.avro", PyArrowFileIO(KEYS)),
        (FILE, OwnIO(KEYS)),
        (FILE, PyArrowFileIO(KEYS | {"py-io-impl": "own.OwnIO"})),
        (FILE, PyArrowFileIO(KEYS | {"s3.role-arn": "arn:aws:iam::1:role/reader"})),
        (FILE, PyArrowFileIO({"s3.region": "eu-central-1"})),
        (FILE, None),
    ],
)
def test_what_obstore_may_read_otherwise_is_left_to_the_file_io(
    location: str, io: FileIO | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    assert fetch(location, io) is None


class RequestedError(Exception):
    pass


@pytest.mark.parametrize("properties", [KEYS, {"s3.anonymous": "true"}, {"s3.region": "eu-central-1"}])
def test_known_credentials_are_used_directly(properties: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    import obstore

    def get(*_: Any) -> None:
        raise RequestedError

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setattr(obstore, "get", get)
    with pytest.raises(RequestedError):
        fetch(FILE, PyArrowFileIO(properties))


@pytest.fixture
def _no_loop() -> Iterator[None]:
    object_stores._event_loop.cache_clear()
    yield
    object_stores._event_loop.cache_clear()


@pytest.mark.usefixtures("_no_loop")
def test_the_event_loop_starts_while_the_first_file_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    import obstore

    def get(*_: Any) -> None:
        assert object_stores._event_loop.cache_info().currsize == 1
        raise RequestedError

    monkeypatch.setattr(obstore, "get", get)
    with pytest.raises(RequestedError):
        fetch(FILE, PyArrowFileIO(KEYS))
    assert object_stores._event_loop().result(60).is_running()


@pytest.mark.usefixtures("_no_loop")
def test_an_event_loop_that_cannot_start_is_an_error_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def new_event_loop() -> None:
        raise OSError("too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "new_event_loop", new_event_loop)
        with pytest.raises(OSError, match="too many open files"):
            begin_fetch(FILE, PyArrowFileIO(KEYS))
    begun = begin_fetch(FILE, PyArrowFileIO(KEYS))
    assert begun is not None
    begun.cancel()
