"""Byte sources: random access to a Parquet file in memory, on disk or in an object store, with I/O counters.

``open_source`` takes a path, a URI or bytes. Every source reads a suffix of the file, or many ranges at once: ranges
near each other are coalesced into one request, requests run concurrently up to a limit, and a tail that was fetched
before is not fetched again. ``counters`` holds the cost; a round trip is one wait for the store.

Fail-safe: a byte range outside the file is a ``CorruptFileError`` before anything is fetched; a response shorter than
the requested range is a retryable error. Neither is ever taken for data.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

import numpy as np

from floeplan.errors import RESTORE, CorruptFileError, FloeplanError, MissingFileError, UnknownFileError
from floeplan.object_stores import S3_SCHEMES, begin_suffix, s3_object
from floeplan.vectors import Ints

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

Range: TypeAlias = tuple[int, int]
"""Offset and length."""
Buffer: TypeAlias = bytes | memoryview
T = TypeVar("T")

MAX_CONCURRENT_REQUESTS = 64
REMOTE_GAP = 16 * 1024
LOCAL_GAP = 4 * 1024


@dataclass(slots=True)
class IoCounters:
    """Cost of reading a source so far."""

    requests: int = 0
    bytes: int = 0
    round_trips: int = 0

    def since(self, before: IoCounters) -> IoCounters:
        """The cost after ``before``."""
        return IoCounters(
            self.requests - before.requests, self.bytes - before.bytes, self.round_trips - before.round_trips
        )


class ByteSource(Protocol):
    """Random access to the bytes of one file."""

    @property
    def name(self) -> str:
        """The file, for messages."""

    @property
    def size(self) -> int:
        """Length of the file; needs no request once a suffix was read."""

    @property
    def counters(self) -> IoCounters:
        """Requests, bytes and round trips so far."""

    def read_suffix(self, length: int) -> Buffer:
        """The last ``length`` bytes, or the whole file when it is shorter."""

    def read_ranges(self, ranges: Sequence[Range]) -> list[memoryview]:
        """The bytes of each range, in the given order, in as few round trips as the limit on requests allows."""


class BaseSource:
    """Base of all sources: a subclass fetches a suffix (which gives the file size) and single ranges.

    Args:
        name: The file, for messages.
        gap: Ranges no further apart than this are fetched together.
        concurrency: Requests in flight at once; 1 fetches sequentially on the calling thread.
    """

    referenced = False
    """Whether a table refers to the file, so that it has to exist."""

    def __init__(self, name: str, *, gap: int, concurrency: int = 1) -> None:
        self.name = name
        self.counters = IoCounters()
        self._gap = gap
        self._concurrency = concurrency
        self._size: int | None = None
        self._tail = memoryview(b"")
        self._errors: tuple[type[Exception], ...] = (OSError,)

    @property
    def size(self) -> int:
        """Length of the file; needs no request once a suffix was read."""
        if self._size is None:
            self.read_suffix(8)
        assert self._size is not None
        return self._size

    def read_suffix(self, length: int) -> memoryview:
        """The last ``length`` bytes, or the whole file when it is shorter."""
        wanted = length if self._size is None else min(length, self._size)
        if len(self._tail) < wanted:
            data, self._size = self._guarded(self._fetch_suffix, length)
            self._account([data], [min(length, self._size)])
            self._tail = memoryview(data)
        return self._tail[max(0, len(self._tail) - length) :]

    def keep_tail(self, tail: bytes, size: int) -> None:
        """Serve the end of the file from bytes that another source of it has fetched."""
        if self._size == size and len(self._tail) < len(tail):
            self._tail = memoryview(tail)

    def read_ranges(self, ranges: Sequence[Range]) -> list[memoryview]:
        """The bytes of each range, in the given order."""
        if len(ranges) == 1 and 0 <= ranges[0][0] < sum(ranges[0]) <= self.size - len(self._tail):
            # Most often a column chunk of a local file, and what follows takes longer than reading it.
            data = memoryview(self._guarded(self._fetch, *ranges[0]))
            self._account([data], [ranges[0][1]])
            return [data]
        spans = np.array(ranges, dtype=np.int64).reshape(-1, 2)
        offsets, lengths = spans[:, 0], spans[:, 1]
        outside = (offsets < 0) | (lengths < 0) | (offsets > self.size - lengths)
        if outside.any():
            at, length = ranges[int(np.argmax(outside))]
            raise corrupt(self.name, f"the byte range of {length} bytes lies outside the file", at)
        # What lies in the tail is served from it; the rest is coalesced and fetched.
        tail_start = self.size - len(self._tail)
        missing = (offsets < tail_start) & (lengths > 0)
        before_tail = np.minimum(lengths, tail_start - offsets)
        starts, ends = coalesce(offsets[missing], before_tail[missing], self._gap)
        requests = byte_ranges(starts, ends - starts)
        run = _executor().map if len(requests) > 1 and self._concurrency > 1 else map
        blocks = [memoryview(data) for data in run(lambda one: self._guarded(self._fetch, *one), requests)]
        self._account(blocks, [length for _, length in requests])
        # Cut the requested ranges out of the fetched blocks.
        which = np.searchsorted(starts, offsets, side="right") - 1
        found = []
        for (offset, length), number, fetched in zip(ranges, which.tolist(), missing.tolist(), strict=True):
            base, data = (int(starts[number]), blocks[number]) if fetched else (tail_start, self._tail)
            part = data[offset - base : offset - base + length] if length else memoryview(b"")
            if len(part) < length:  # it reaches into the tail
                part = memoryview(b"".join((part, self._tail[: length - len(part)])))
            found.append(part)
        return found

    def _guarded(self, fetch: Callable[..., T], *request: int) -> T:
        """Fetch, and turn errors of the store into errors that name the file."""
        try:
            return fetch(*request)
        except FileNotFoundError:
            raise missing_file(self) from None
        except IsADirectoryError:
            message = f"{self.name} is a folder, and a file is expected"
            raise UnknownFileError(message, context={"file": self.name}) from None
        except self._errors as error:
            raise _retryable(self.name, "read-failed", f"{self.name} cannot be read: {_first_line(error)}") from error

    def _account(self, responses: Sequence[Buffer], expected: Sequence[int]) -> None:
        """Count the cost of responses, and check that each has the requested length."""
        self.counters.requests += len(responses)
        self.counters.bytes += sum(map(len, responses))
        self.counters.round_trips += -(-len(responses) // MAX_CONCURRENT_REQUESTS)
        for response, length in zip(responses, expected, strict=True):
            if len(response) != length:
                message = f"{self.name}: the store returned {len(response)} bytes instead of {length}; run again"
                raise _retryable(self.name, "short-read", message)

    def _fetch_suffix(self, length: int) -> tuple[Buffer, int]:
        """The last bytes and the size of the file; overridden where the size is not known in advance."""
        assert self._size is not None
        return self._fetch(max(0, self._size - length), min(length, self._size)), self._size

    def _fetch(self, offset: int, length: int) -> Buffer:
        raise NotImplementedError


def coalesce(offsets: Ints, lengths: Ints, gap: int) -> tuple[Ints, Ints]:
    """Starts and ends of the fewest ranges that cover the given ones, joining those no further apart than the gap."""
    order = np.argsort(offsets, kind="stable")
    starts = offsets[order]
    reach = np.maximum.accumulate(starts + lengths[order]) if len(starts) else starts
    opens = np.ones(len(starts), dtype=np.bool_)
    opens[1:] = starts[1:] - reach[:-1] > gap
    return starts[opens], reach[np.append(opens[1:], True)] if len(starts) else reach


def byte_ranges(offsets: Ints, lengths: Ints) -> list[Range]:
    """Columns of offsets and lengths as ranges."""
    return list(zip(offsets.tolist(), lengths.tolist(), strict=True))


@cache
def _executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_CONCURRENT_REQUESTS, thread_name_prefix="floeplan-io")


os.register_at_fork(after_in_child=_executor.cache_clear)  # threads do not survive a fork


class BytesSource(BaseSource):
    """A file in memory."""

    def __init__(self, data: Buffer, name: str = "<memory>", *, gap: int = LOCAL_GAP) -> None:
        super().__init__(name, gap=gap)
        self._data = memoryview(data)
        self._size = len(self._data)

    def _fetch(self, offset: int, length: int) -> Buffer:
        return self._data[offset : offset + length]


class LocalSource(BaseSource):
    """A local file, opened once and read by position."""

    def __init__(self, path: str | os.PathLike[str], *, gap: int = LOCAL_GAP) -> None:
        super().__init__(os.fspath(path), gap=gap)
        self._descriptor = self._guarded(lambda: os.open(path, os.O_RDONLY))
        self._size = os.fstat(self._descriptor).st_size

    def __del__(self) -> None:
        descriptor = getattr(self, "_descriptor", None)
        if descriptor is not None:
            os.close(descriptor)

    def _fetch(self, offset: int, length: int) -> Buffer:
        data = os.pread(self._descriptor, length, offset)  # may return fewer bytes than requested
        while len(data) < length and (more := os.pread(self._descriptor, length - len(data), offset + len(data))):
            data += more
        return data

    def read_into(self, memory: memoryview, offset: int) -> None:
        """Fill memory with the bytes at an offset."""
        length = 0
        while rest := memory[length:]:  # the system may return fewer bytes than requested
            read = self._guarded(lambda at: os.preadv(self._descriptor, [rest], at), offset + length)
            if not read:
                break
            length += read
        self._account([memory[:length]], [len(memory)])


class FileIOSource(BaseSource):
    """Any location a PyIceberg ``FileIO`` can open; one stream per request if streams cannot be read by position."""

    def __init__(self, location: str, io: FileIO, *, gap: int = REMOTE_GAP) -> None:
        super().__init__(location, gap=gap, concurrency=MAX_CONCURRENT_REQUESTS)
        self._file = io.new_input(location)
        self._size = self._guarded(lambda: len(self._file))
        stream: Any = self._guarded(lambda: self._file.open())
        self._read_at: Callable[[int, int], bytes] | None = getattr(stream, "read_at", None)
        if self._read_at is None:
            stream.close()

    def _fetch(self, offset: int, length: int) -> Buffer:
        if self._read_at is not None:
            return self._read_at(length, offset)
        with self._file.open() as stream:
            stream.seek(offset)
            return stream.read(length)


class ObjectStoreSource(BaseSource):
    """An object in a store that obstore supports: S3, HTTP, GCS, Azure."""

    def __init__(self, store: Any, path: str, name: str, *, gap: int = REMOTE_GAP, size: int | None = None) -> None:
        from obstore.exceptions import BaseError

        super().__init__(name, gap=gap, concurrency=MAX_CONCURRENT_REQUESTS)
        self._size = size
        self._errors = (OSError, BaseError)
        self._store = store
        self._path = path
        self._begun: tuple[int, Future[tuple[Any, int]]] | None = None

    def begin_suffix(self, length: int) -> None:
        """Begin to fetch the last bytes, for ``read_suffix`` of the same length."""
        self._begun = length, begin_suffix(self._store, self._path, length)

    def _fetch_suffix(self, length: int) -> tuple[Buffer, int]:
        import obstore

        if self._begun is not None and self._begun[0] == length:
            data, size = self._begun[1].result()
            return memoryview(data), size
        response = obstore.get(self._store, self._path, options={"range": {"suffix": length}})
        return memoryview(response.bytes()), response.meta["size"]

    def _fetch(self, offset: int, length: int) -> Buffer:
        import obstore

        return memoryview(obstore.get_range(self._store, self._path, start=offset, length=length))


def missing_file(source: ByteSource) -> FloeplanError:
    """The error for a file that does not exist: bad input, unless a table refers to it."""
    if isinstance(source, BaseSource) and source.referenced:
        return _missing_of_table(source.name)
    return UnknownFileError(f"{source.name}: no such file", context={"file": source.name})


def _missing_of_table(name: str) -> MissingFileError:
    message = f"{name} does not exist although the table refers to it: {RESTORE}"
    return MissingFileError(message, context={"file": name})


def open_referenced(path: str, io: FileIO | None, size: int | None = None) -> ByteSource:
    """Open a data or delete file of a table."""
    try:
        source = open_source(path, io, size)
    except UnknownFileError as error:  # local files are opened at once, the others by the first request
        if isinstance(error.__context__, FileNotFoundError):
            raise _missing_of_table(path) from None
        raise
    if isinstance(source, BaseSource):
        source.referenced = True
    return source


def open_source(
    file: str | os.PathLike[str] | Buffer | ByteSource, io: FileIO | None = None, size: int | None = None
) -> ByteSource:
    """Open a path, a URI or bytes; a source is returned as it is. A known ``size`` may save a request.

    S3 and HTTP locations are read through obstore, S3 with the credentials and the endpoint of ``io`` if given; other
    URIs through ``io`` if given, else through obstore.
    """
    if isinstance(file, bytes | memoryview):
        return BytesSource(file)
    if not isinstance(file, str | os.PathLike):
        return file
    location = os.fspath(file)
    try:
        scheme = urlsplit(location).scheme if "://" in location or location.startswith("file:") else ""
        if not scheme:
            return LocalSource(Path(location))
        if scheme == "file":
            # Iceberg writes the path literally: ``%``, ``#`` and ``?`` belong to the name. If no such file exists, the
            # location may be a URI in which those characters are escaped.
            literal = location.removeprefix("file:").removeprefix("//")
            escaped = unquote(urlsplit(location).path)
            return LocalSource(escaped if not os.path.exists(literal) and os.path.exists(escaped) else literal)
        if scheme in S3_SCHEMES:
            return ObjectStoreSource(*s3_object(location, io), location, size=size)
        if io is not None and scheme not in ("http", "https"):
            return FileIOSource(location, io)
        from obstore.store import from_url

        parent, _, path = location.rpartition("/")
        store: Any = from_url(parent, client_options={"allow_http": scheme == "http"})
        return ObjectStoreSource(store, path, location)
    except FloeplanError:
        raise
    except OSError as error:
        raise _retryable(location, "read-failed", f"{location} cannot be read: {_first_line(error)}") from error
    except Exception as error:
        message = f"{location} cannot be opened: {_first_line(error)}"
        raise UnknownFileError(message, context={"file": location}) from error


def is_local(location: str) -> bool:
    """Whether a location is a path or a ``file:`` URI."""
    return location.startswith(("/", "file:"))


def _retryable(file: str, kind: str, message: str) -> FloeplanError:
    return FloeplanError(message, kind=kind, context={"file": file}, retryable=True, safe_to_clean=True)


def _first_line(error: Exception) -> str:
    """The first line of an error; obstore appends a dump of its internals."""
    return str(error).partition("\n")[0]


class PrefetchingSource:
    """A source that fetches announced ranges together with the next read, which saves a round trip.

    Pruning reads Bloom filters first and page indexes after; small indexes are cheaper to fetch with the filters than
    in a second round trip.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._pending: list[Range] = []
        self._prefetched: dict[Range, memoryview] = {}

    @property
    def name(self) -> str:
        """The file, for messages."""
        return self._source.name

    @property
    def size(self) -> int:
        """Length of the file."""
        return self._source.size

    @property
    def counters(self) -> IoCounters:
        """Cost of the underlying source so far."""
        return self._source.counters

    def read_suffix(self, length: int) -> Buffer:
        """The last bytes, from the underlying source."""
        return self._source.read_suffix(length)

    def prefetch(self, ranges: Iterable[Range]) -> None:
        """Fetch these ranges with the next read."""
        self._pending += ranges

    def read_ranges(self, ranges: Sequence[Range]) -> list[memoryview]:
        """The bytes of each range; prefetched ranges need no request."""
        missing = [span for span in ranges if span not in self._prefetched]
        fetched = self._source.read_ranges([*missing, *self._pending])
        fresh = dict(zip(missing, fetched, strict=False))
        self._prefetched |= zip(self._pending, fetched[len(missing) :], strict=True)
        self._pending = []
        return [self._prefetched[span] if span in self._prefetched else fresh[span] for span in ranges]


def corrupt(file: str, problem: str, offset: int | None = None) -> CorruptFileError:
    """The error for a corrupt Parquet file: file, problem and, when known, the offset."""
    where = "" if offset is None else f" (offset {offset})"
    context = {"file": file} | ({} if offset is None else {"offset": offset})
    return CorruptFileError(f"{file} is not a readable Parquet file: {problem}{where}", context=context)
