"""Bytes of metadata files, through PyIceberg's FileIO or straight from the local disk.

Local paths need no FileIO and no threads; everything else is fetched concurrently and handed out in order, never more
than ``max_workers`` files ahead.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from floeplan.errors import CorruptMetadataError, FloeplanError
from floeplan.text import one_line

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


# Where the files of a table may lie, and so which files may be removed in its name.
#
# Rule: a table's locations are its own and those its properties send new files to. A file lies in one of them when
# scheme, authority and path say so, with no ``..`` and, on this machine, no symbolic link on the way: a link leads out,
# or gives a file that is in use another name.
#
# Fail-safe: whatever is not plainly inside is outside. Metadata can name any file, of another table or of none, and a
# file that stays costs storage only.


_SAME_SCHEME = {"s3a": "s3", "s3n": "s3", "": "file"}
_PATH_PROPERTIES = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)


@dataclass(frozen=True, slots=True)
class Location:
    """A location taken apart, with names that mean the same written the same way."""

    scheme: str
    authority: str
    path: str

    @classmethod
    def parse(cls, text: str) -> Location:
        """Take a path or URI apart; one slash is as good as several, and none stands for the folder of this process.

        Raises:
            CorruptMetadataError: It is no URI.
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
        """Whether the other one lies under this one."""
        if (self.scheme, self.authority) != (other.scheme, other.authority) or ".." in other.path.split("/"):
            return False
        if not _is_under(other.path, self.path):
            return False
        inside = other.path.removeprefix(self.path)
        return self.scheme != "file" or _folders_followed(other.path) == os.path.realpath(self.path) + inside


@dataclass(frozen=True, slots=True)
class TableLocations:
    """The locations of one table."""

    roots: tuple[Location, ...]

    @classmethod
    def of(cls, metadata: TableMetadata) -> TableLocations:
        """The locations a table's metadata name."""
        return cls.named(metadata.location, metadata.properties)

    @classmethod
    def named(cls, location: str, properties: Mapping[str, str]) -> TableLocations:
        """The table's own location, and those of its properties."""
        named = [location, *(properties.get(name, "") for name in _PATH_PROPERTIES)]
        return cls(tuple(Location.parse(text) for text in named if text))

    def hold(self, path: str) -> bool:
        """Whether a file lies in one of the locations."""
        try:
            location = Location.parse(path)
            return any(root.holds(location) for root in self.roots)
        except (CorruptMetadataError, ValueError):
            return False


def _from_here(path: str) -> str:
    return path if path.startswith("/") else f"{os.getcwd()}/{path}"


def _one_slash(path: str) -> str:
    return "/" + "/".join(part for part in path.split("/") if part)


def _is_under(path: str, root: str) -> bool:
    return root != "/" and path.startswith(f"{root}/")


def _folders_followed(path: str) -> str:
    """The path with the links of its folders followed; what is removed is the last part, be it a link or not."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


# Removing files in the name of a table.
#
# Rule: only files in the table's locations are removed, whoever names them. Fail-safe: a file that lies elsewhere or
# cannot be removed is left; an orphan costs storage only.


_AT_A_TIME = 16


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of a table: where they lie, and the way to them."""

    locations: TableLocations
    io: FileIO

    @classmethod
    def of(cls, table: Table) -> TableFiles:
        """The files of a table as it is now."""
        return cls(TableLocations.of(table.metadata), table.io)

    def remove(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Remove files as far as possible, several at a time; returns those that are gone."""
        wanted = sorted(path for path in set(paths) if self.locations.hold(path))
        if not wanted:
            return ()
        with ThreadPoolExecutor(min(_AT_A_TIME, len(wanted)), "floeplan-cleanup") as pool:
            gone = list(pool.map(self._remove, wanted))
        return tuple(path for path, done in zip(wanted, gone, strict=True) if done)

    def _remove(self, path: str) -> bool:
        try:
            self.io.delete(path)
        except Exception:
            return False
        return True
