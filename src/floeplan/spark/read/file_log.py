"""The files of a plan as a folder that Spark opens without listing or opening any of them.

A Spark file sink writes a log of its files (``_spark_metadata``), and where Spark finds one it reads exactly the files
in it. Listing 10,000 paths costs Spark 3 to 40 seconds of CPU; a log written here costs half a second. The modification
time that the log states for a file comes back with every row as ``_metadata.file_modification_time``, so it carries a
number of our choice, the *tag* of the file.

A log is named by the hash of its content, and the DataFrames of the last logs are cached per session: reading the same
files again neither writes a log nor makes Spark parse it. A caller must build new columns from those of a cached
DataFrame, as ``native`` does: a join could not distinguish two reads that share a column.

Only the process that plans the query reads the log, so a local folder is enough, unless that process is on another
machine (Spark Connect): then files are passed by path, without tags.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING
from urllib.parse import quote
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cachetools import LRUCache, cached
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameReader
from pyspark.sql.types import LongType, StructField, StructType

from floeplan.spark.jvm import with_size
from floeplan.spark.read.deletes import CACHE_BYTES
from floeplan.tasks.shipping import is_connect
from floeplan.vectors import Ints

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SAFE_IN_URL = "/:=+,@!$&'()*;~"
_UNSAFE = r"[^A-Za-z0-9/:=+,@!$&'()*;~._-]"
_OPTIONS = {
    "recursiveFileLookup": "true",
    "__globPaths__": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}
"""No partition columns inferred from paths; no globs, which ``[``, ``{`` and ``\\`` in paths would be; no file skipped
silently; dates before 1582 as written, since Iceberg uses the proleptic Gregorian calendar."""

_SHIFT, _MICROS = 10, 1000
"""A tag is taken from a time in microseconds by a shift, which is cheaper per row than a division by 1000."""
TAG = f"shiftright(unix_micros(_metadata.file_modification_time), {_SHIFT})"
"""The tag of a row's file, as SQL."""

_FRAME_BYTES, _BYTES_PER_CHARACTER = 2**18, 8
"""Estimated memory of a cached DataFrame: a fixed part, and a part per character of schema and log."""

_reads_logs: WeakKeyDictionary[SparkSession, bool] = WeakKeyDictionary()
_folders: list[tempfile.TemporaryDirectory[str]] = []


def read_logged(
    spark: SparkSession,
    schema: StructType,
    paths: pa.Array,
    sizes: Ints,
    tags: Ints,
    *,
    may_miss: bool = False,
    size: tuple[int, int] | None = None,
) -> DataFrame:
    """The rows of Parquet files in the columns of a schema with field ids; ``TAG`` is the tag of a row's file.

    A file that does not exist is an error; with ``may_miss`` it has no rows. ``size`` is the estimated size of the rows
    in bytes, and their number; Spark assumes the size of the files otherwise.
    """
    lines, columns = _lines(paths, sizes, tags), schema.json()
    # The folder of a log is named by the hash of its lines, so that a log is written only once.
    folder = Path(process_folder()) / hashlib.blake2b(lines.encode(), digest_size=16).hexdigest()
    log = folder / "_spark_metadata" / "0"
    if not log.exists():
        partial = folder.with_name(uuid.uuid4().hex)
        partial.write_text("v1\n" + lines)
        log.parent.mkdir(parents=True, exist_ok=True)
        os.replace(partial, log)
    nbytes = _FRAME_BYTES + _BYTES_PER_CHARACTER * (len(lines) + len(columns))
    return cached_frame(spark, columns, may_miss, folder, size, nbytes).frame


@dataclass(frozen=True, slots=True)
class _CachedFrame:
    """The rows of the files of a log, and the estimated memory that Spark uses for them."""

    frame: DataFrame
    nbytes: int


@cached(LRUCache(CACHE_BYTES, attrgetter("nbytes")), key=lambda *named: named[:-1], lock=Lock())
def cached_frame(
    spark: SparkSession, schema: str, may_miss: bool, folder: Path, size: tuple[int, int] | None, nbytes: int
) -> _CachedFrame:
    """The rows of a log, from the session's cache or loaded now; loading does not block other threads."""
    frame = _reader(spark, schema, may_miss).load(folder.as_uri())
    return _CachedFrame(frame if size is None else with_size(frame, *size), nbytes)


def can_read_logs(spark: SparkSession) -> bool:
    """Whether the process that plans queries can read local files; with Spark Connect it may be on another machine."""
    if not is_connect(spark):
        return True
    if spark not in _reads_logs:
        nothing, none = np.zeros(0, dtype=np.int64), pa.array([], pa.string())
        try:
            read_logged(spark, StructType([StructField("nothing", LongType())]), none, nothing, nothing).schema  # noqa: B018
            _reads_logs[spark] = True
        except AnalysisException:
            _reads_logs[spark] = False
    return _reads_logs[spark]


def read_named(spark: SparkSession, schema: StructType, paths: Sequence[str]) -> DataFrame:
    """The same by path and without tags; Spark opens each file for its status."""
    return _reader(spark, schema.json(), False).load(list(paths))


@lru_cache(maxsize=32)
def _reader(spark: SparkSession, schema: str, may_miss: bool) -> DataFrameReader:
    """A reader for a schema, given as JSON; cached, since building it takes ten calls to the JVM."""
    columns = StructType.fromJson(json.loads(schema))
    options = {**_OPTIONS, "ignoreMissingFiles": "true" if may_miss else "false"}
    return spark.read.format("parquet").schema(columns).options(**options)


def _lines(paths: pa.Array, sizes: Ints, tags: Ints) -> str:
    # The log is parsed as URIs, so special characters are escaped; without a scheme a path is local.
    urls = paths.cast(pa.string())
    local = pc.starts_with(urls, "/")
    if pc.any(local).as_py():
        urls = pc.if_else(local, pc.binary_join_element_wise("file://", urls, ""), urls)
    if pc.any(pc.match_substring_regex(urls, _UNSAFE)).as_py():
        urls = pa.array([quote(path, safe=_SAFE_IN_URL) for path in urls.to_pylist()], pa.string())
    head = '{"isDir":false,"blockReplication":1,"blockSize":134217728,"action":"add","path":"'
    times = -(-(tags << _SHIFT) // _MICROS)
    lines = pc.binary_join_element_wise(
        head, urls, '","size":', pa.array(sizes).cast(pa.string()), ',"modificationTime":',
        pa.array(times).cast(pa.string()), "}", "",
    )  # fmt: skip
    return "\n".join(lines.to_pylist())


def process_folder() -> str:
    """The folder of logs, one per process. Spark reads a log again whenever a plan runs, so logs stay until exit."""
    if not _folders:
        _folders.append(tempfile.TemporaryDirectory(prefix="floeplan-read-", ignore_cleanup_errors=True))
        atexit.register(_folders[0].cleanup)
    return _folders[0].name
