"""Reads, writes and deletes the files of a table: local ones directly, others by ``object_stores`` or a FileIO.

Local metadata files need no FileIO and no threads; others are fetched in parallel and returned in order, with at most
``max_workers`` files prefetched. Files are deleted only inside the table's locations: metadata can name any file, of
another table too, and a file that stays costs only storage. A server checks what it reads in the same spirit: within
``guarded_reads`` a function sees each location first and may refuse it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from floeplan import object_stores
from floeplan.errors import RESTORE, CorruptMetadataError, FloeplanError
from floeplan.format4 import PATH_PROPERTIES, location_properties
from floeplan.text import one_line

MAX_WORKERS = 64
"""Default number of requests in flight against a remote store."""

_guard: ContextVar[Callable[[str], None] | None] = ContextVar("floeplan_read_guard", default=None)


@contextmanager
def guarded_reads(guard: Callable[[str], None]) -> Iterator[None]:
    """Call ``guard`` with the location of every metadata file that this thread reads or prefetches; it may raise."""
    token = _guard.set(guard)
    try:
        yield
    finally:
        _guard.reset(token)


def _check_guard(location: str) -> None:
    guard = _guard.get()
    if guard is not None:
        guard(location)


def local_path(location: str) -> str | None:
    """The path on this machine, or ``None`` for a location in another store."""
    if location.startswith("file:"):
        rest = location.removeprefix("file:")
        return rest.removeprefix("//") if rest.startswith("//") else rest
    return None if "://" in location else location


def read_file(location: str, io: FileIO | None = None) -> bytes:
    """All bytes of a metadata file.

    Raises:
        CorruptMetadataError: The file does not exist although the table refers to it, or the name is invalid.
        FloeplanError: The file cannot be read now.
    """
    _check_guard(location)
    path = local_path(location)
    with _reading(location):
        if path is not None:
            with open(path, "rb", buffering=0) as local:
                return local.read()
        fetched = object_stores.fetch(location, io)
        if fetched is not None:
            return fetched
        with (io or load_file_io(location=location)).new_input(location).open() as remote:
            return remote.read()


def open_file(location: str, io: FileIO | None = None) -> Any:
    """A metadata file opened for reading parts of it; raises as ``read_file``."""
    _check_guard(location)
    path = local_path(location)
    with _reading(location):
        if path is not None:
            return pa.OSFile(path, "rb")
        return (io or load_file_io(location=location)).new_input(location).open()


@contextmanager
def _reading(location: str) -> Iterator[None]:
    """Turn errors of the store while reading a file into an error that names the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise CorruptMetadataError(
            f"{location} does not exist although the table refers to it: {RESTORE}", context={"file": location}
        ) from error
    except ValueError as error:
        raise CorruptMetadataError(
            f"the table refers to {location!r}, which names no file: {error}", context={"file": location}
        ) from error
    except IsADirectoryError as error:
        message = f"the table refers to {location}, which is a folder"
        raise CorruptMetadataError(message, context={"file": location}) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise FloeplanError(
            f"{location} cannot be read: {reason}", kind="unreadable", context={"file": location}, retryable=True
        ) from error


def write_file(location: str, data: bytes, io: FileIO | None = None) -> None:
    """Write a new metadata file; metadata files never change.

    A partly written file is removed from a local disk. In other stores it may stay: the request may have succeeded
    without a response, and nothing refers to the file.

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
    """Turn errors of the store while writing a file into an error that names the file.

    Raises:
        FloeplanError: The file exists (``exists``), or cannot be written now (``unwritable``).
    """
    try:
        yield
    except FileExistsError as error:
        raise FloeplanError(f"{location} exists already", kind="exists", context={"file": location}) from error
    except OSError as error:
        raise FloeplanError(
            f"{location} cannot be written: {one_line(error.strerror or error)}",
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
    pending: deque[Future[bytes]] = deque()
    pool = ThreadPoolExecutor(min(max_workers, len(locations)), thread_name_prefix="floeplan-metadata")
    try:
        for number, location in enumerate(locations):
            _check_guard(location)  # here, because the threads of the pool do not see the guard
            begun = object_stores.begin_fetch(location, io)
            pending.append(pool.submit(read_file, location, io) if begun is None else begun)
            if len(pending) >= max_workers:
                yield _result(pending.popleft(), locations[number + 1 - max_workers])
        for location in locations[len(locations) - len(pending) :]:
            yield _result(pending.popleft(), location)
    finally:
        for future in pending:
            future.cancel()
        pool.shutdown(wait=True, cancel_futures=True)


def _result(pending: Future[bytes], location: str) -> bytes:
    with _reading(location):
        return pending.result()


_SAME_SCHEME = {"s3a": "s3", "s3n": "s3", "": "file"}


class Location(NamedTuple):
    """A parsed and normalized location."""

    scheme: str
    authority: str
    path: str

    @classmethod
    def parse(cls, text: str) -> Location:
        """Parse a path or URI; repeated slashes are one, and a relative path starts at the working directory.

        Raises:
            CorruptMetadataError: It is not a valid URI.
        """
        if "://" not in text and not text.startswith("file:"):
            return cls("file", "", _one_slash(_from_here(text)))
        try:
            split = urlsplit(text)
        except ValueError as error:
            raise CorruptMetadataError(f"{text!r} names no file: {error}", context={"file": text}) from error
        scheme = _SAME_SCHEME.get(split.scheme.lower(), split.scheme.lower())
        authority = "" if scheme == "file" and split.netloc in ("", "localhost") else split.netloc
        rest = text.split("://", 1)[-1].removeprefix(split.netloc) if "://" in text else _from_here(split.path)
        return cls(scheme, authority, _one_slash(rest))

    def holds(self, other: Location) -> bool:
        """Whether the other location is inside this one, with no ``..`` and no symbolic link on the way."""
        if (self.scheme, self.authority) != (other.scheme, other.authority) or ".." in other.path.split("/"):
            return False
        if self.path == "/" or not other.path.startswith(f"{self.path}/"):
            return False
        if self.scheme != "file":
            return True
        # Links are resolved in the folders only: the last part is what would be deleted, link or not.
        folder, name = os.path.split(other.path)
        resolved = os.path.join(os.path.realpath(folder), name)
        return resolved == os.path.realpath(self.path) + other.path.removeprefix(self.path)


class TableLocations(NamedTuple):
    """The locations of one table: its own, and those to which its properties direct new files."""

    roots: tuple[Location, ...]

    @classmethod
    def of(cls, metadata: TableMetadata) -> TableLocations:
        """The locations in a table's metadata."""
        return cls.named(metadata.location, location_properties(metadata))

    @classmethod
    def named(cls, location: str, properties: Mapping[str, str]) -> TableLocations:
        """The table's own location, and those of its properties."""
        named = [location, *(properties.get(name, "") for name in PATH_PROPERTIES)]
        return cls(tuple(Location.parse(text) for text in named if text))

    def hold(self, path: str) -> bool:
        """Whether a file is inside one of the locations."""
        try:
            location = Location.parse(path)
            return any(root.holds(location) for root in self.roots)
        except (CorruptMetadataError, ValueError):
            return False


def _from_here(path: str) -> str:
    return path if path.startswith("/") else f"{os.getcwd()}/{path}"


def _one_slash(path: str) -> str:
    return "/" + "/".join(part for part in path.split("/") if part)


_DELETE_THREADS = 16


class TableFiles(NamedTuple):
    """The locations of a table's files and the IO to delete them with."""

    locations: TableLocations
    io: FileIO

    @classmethod
    def of(cls, table: Table) -> TableFiles:
        """The files of a table as it is now."""
        return cls(TableLocations.of(table.metadata), table.io)

    def remove(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Delete the files inside the table's locations, in parallel; returns those that were deleted."""
        inside = sorted(path for path in set(paths) if self.locations.hold(path))
        if not inside:
            return ()
        with ThreadPoolExecutor(min(_DELETE_THREADS, len(inside)), "floeplan-cleanup") as pool:
            deleted = list(pool.map(self._remove, inside))
        return tuple(path for path, done in zip(inside, deleted, strict=True) if done)

    def _remove(self, path: str) -> bool:
        with suppress(Exception):
            self.io.delete(path)
            return True
        return False
