"""Bytes of metadata files, through PyIceberg's FileIO or straight from the local disk.

Local paths need no FileIO and no threads; everything else is fetched concurrently and handed out in order, never more
than ``max_workers`` files ahead.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from pyiceberg.io import FileIO, load_file_io

from floeplan.errors import CorruptMetadataError, FloeplanError

MAX_WORKERS = 64
"""Requests in flight against a remote store unless the caller says otherwise."""


def local_path(location: str) -> str | None:
    """The path on this machine, or ``None`` for a location in another store."""
    if location.startswith("file:"):
        rest = location.removeprefix("file:")
        return rest.removeprefix("//") if rest.startswith("//") else rest
    return None if "://" in location else location


def read_file(location: str, io: FileIO | None = None) -> bytes:
    """All bytes of a metadata file.

    Raises:
        CorruptMetadataError: The file is not there although the table refers to it, or no file can have that name.
        FloeplanError: The file cannot be read now.
    """
    path = local_path(location)
    try:
        if path is not None:
            with open(path, "rb", buffering=0) as local:
                return local.read()
        with (io or load_file_io(location=location)).new_input(location).open() as remote:
            return remote.read()
    except FileNotFoundError as error:
        raise CorruptMetadataError(
            f"{location} does not exist although the table refers to it", context={"file": location}
        ) from error
    except ValueError as error:
        raise CorruptMetadataError(
            f"the table refers to {location!r}, which names no file: {error}", context={"file": location}
        ) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise FloeplanError(
            f"{location} cannot be read: {reason}", kind="unreadable", context={"file": location}, retryable=True
        ) from error


def write_file(location: str, data: bytes, io: FileIO | None = None) -> None:
    """Write a metadata file that is not there yet; metadata files never change.

    A file that could not be written whole does not stay on a local disk. In other stores it may: what they were asked
    for can have been done without an answer, and nothing refers to it.

    Raises:
        FloeplanError: A file of this name exists, or it cannot be written now.
    """
    path = local_path(location)
    with writing(location):
        if path is None:
            with (io or load_file_io(location=location)).new_output(location).create() as remote:
                remote.write(data)
            return
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "xb") as local:
            try:
                local.write(data)
                local.flush()
            except BaseException:
                os.remove(path)
                raise


@contextmanager
def writing(location: str) -> Iterator[None]:
    """What a store raises while a file is written becomes an error that names the file.

    Raises:
        FloeplanError: The file exists (``exists``), or cannot be written now (``unwritable``).
    """
    try:
        yield
    except FileExistsError as error:
        raise FloeplanError(f"{location} exists already", kind="exists", context={"file": location}) from error
    except OSError as error:
        reason = " ".join((error.strerror or str(error)).split())
        raise FloeplanError(
            f"{location} cannot be written: {reason}",
            kind="unwritable",
            context={"file": location},
            retryable=True,
            safe_to_clean=True,
        ) from error


def read_files(locations: Sequence[str], io: FileIO | None = None, max_workers: int = MAX_WORKERS) -> Iterator[bytes]:
    """The bytes of each file, in the order given."""
    if max_workers <= 1 or len(locations) <= 1 or all(local_path(location) is not None for location in locations):
        for location in locations:
            yield read_file(location, io)
        return
    ahead: deque[Future[bytes]] = deque()
    pool = ThreadPoolExecutor(min(max_workers, len(locations)), thread_name_prefix="floeplan-metadata")
    try:
        for location in locations:
            ahead.append(pool.submit(read_file, location, io))
            if len(ahead) >= max_workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
