"""The files of a plan as a folder that Spark opens without listing or looking at a single one of them.

Spark keeps a log of the files a stream has written (``_spark_metadata``) and, where it finds one, reads exactly the
files named there. A log written by hand therefore costs nothing per file, and the time of modification it states for a
file comes back with every row: it carries a number of ours, the file's *tag*.

A log is named by what is in it, and a session holds the files it has loaded last: reading the same files again neither
writes a log nor has Spark look into it. Every reader must make columns of its own of those that are held, as
``native`` does: rows of two reads that share a column could not be told apart in a join.

Only the process that plans the query reads the log, so a local folder will do, except where that process is on another
machine (Spark Connect): then the folder must be one that both can reach, or the files are named one by one, without
tags.
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
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from cachetools import LRUCache, cached
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameReader
from pyspark.sql.types import LongType, StructField, StructType

from floeplan.spark.read.deletes import MOST_BYTES
from floeplan.tasks.shipping import is_connect

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
"""No guessing of partitions from paths, no globs, no file left out in silence, no calendar but today's."""

_SHIFT, _MICROS = 10, 1000
"""A tag comes out of a time in microseconds by a shift, which costs a row less than a division by a thousand."""
TAG = f"shiftright(unix_micros(_metadata.file_modification_time), {_SHIFT})"
"""The number the log gave to the file of a row, in SQL."""

_HELD_BYTES, _BYTES_PER_LETTER = 2**18, 8
"""What Spark keeps of files that are loaded: so much of anything, and so much for a letter of schema and log."""

_seen: WeakKeyDictionary[SparkSession, bool] = WeakKeyDictionary()
_folders: list[tempfile.TemporaryDirectory[str]] = []


def read_logged(
    spark: SparkSession,
    schema: StructType,
    paths: pa.Array,
    sizes: npt.NDArray[np.int64],
    tags: npt.NDArray[np.int64],
    *,
    may_miss: bool = False,
) -> DataFrame:
    """Rows of these Parquet files in the columns of a schema with field ids; ``TAG`` is the file's number.

    A file that tasks do not find is an error, unless they ``may_miss`` it: then it has no rows.
    """
    lines, columns = _lines(paths, sizes, tags), schema.json()
    nbytes = _HELD_BYTES + _BYTES_PER_LETTER * (len(lines) + len(columns))
    return loaded_files(spark, columns, may_miss, _write_log(lines), nbytes).frame


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Rows of the files of a log, and what Spark keeps of them."""

    frame: DataFrame
    nbytes: int


@cached(LRUCache(MOST_BYTES, attrgetter("nbytes")), key=lambda *named: named[:-1], lock=Lock())
def loaded_files(spark: SparkSession, schema: str, may_miss: bool, folder: Path, nbytes: int) -> _Loaded:
    """The rows of a log that a session holds, or else loads now, other threads not waiting."""
    return _Loaded(_reader(spark, schema, may_miss).load(folder.as_uri()), nbytes)


def _write_log(lines: str) -> Path:
    """The folder whose log has these lines, written unless it is there: what is read again is not written again."""
    folder = Path(process_folder()) / hashlib.blake2b(lines.encode(), digest_size=16).hexdigest()
    log = folder / "_spark_metadata" / "0"
    if not log.exists():
        partial = folder.with_name(uuid.uuid4().hex)
        partial.write_text("v1\n" + lines)
        log.parent.mkdir(parents=True, exist_ok=True)
        os.replace(partial, log)
    return folder


def sees_logs(spark: SparkSession) -> bool:
    """Whether the process that plans queries sees this one's folders; only Spark Connect can be elsewhere."""
    if not is_connect(spark):
        return True
    if spark not in _seen:
        nothing, none = np.zeros(0, dtype=np.int64), pa.array([], pa.string())
        try:
            read_logged(spark, StructType([StructField("nothing", LongType())]), none, nothing, nothing).schema  # noqa: B018
            _seen[spark] = True
        except AnalysisException:
            _seen[spark] = False
    return _seen[spark]


def read_named(spark: SparkSession, schema: StructType, paths: Sequence[str]) -> DataFrame:
    """The same without tags, the files named one by one: Spark looks at each."""
    return _reader(spark, schema.json(), False).load(list(paths))


@lru_cache(maxsize=32)
def _reader(spark: SparkSession, schema: str, may_miss: bool) -> DataFrameReader:
    """What loads files in the columns of a schema, as JSON; kept, since making it takes ten calls of the JVM."""
    columns = StructType.fromJson(json.loads(schema))
    options = {**_OPTIONS, "ignoreMissingFiles": "true" if may_miss else "false"}
    return spark.read.format("parquet").schema(columns).options(**options)


def _lines(paths: pa.Array, sizes: npt.NDArray[np.int64], tags: npt.NDArray[np.int64]) -> str:
    urls = _urls(paths.cast(pa.string()))
    head = '{"isDir":false,"blockReplication":1,"blockSize":134217728,"action":"add","path":"'
    times = -(-(tags << _SHIFT) // _MICROS)
    lines = pc.binary_join_element_wise(
        head, urls, '","size":', pa.array(sizes).cast(pa.string()), ',"modificationTime":',
        pa.array(times).cast(pa.string()), "}", "",
    )  # fmt: skip
    return "\n".join(lines.to_pylist())


def _urls(paths: pa.Array) -> pa.Array:
    """Locations as URLs: what is no plain character is escaped, a path without a scheme is a local file."""
    local = pc.starts_with(paths, "/")
    if pc.any(local).as_py():
        paths = pc.if_else(local, pc.binary_join_element_wise("file://", paths, ""), paths)
    if not pc.any(pc.match_substring_regex(paths, _UNSAFE)).as_py():
        return paths
    return pa.array([quote(path, safe=_SAFE_IN_URL) for path in paths.to_pylist()], pa.string())


def process_folder() -> str:
    """One folder a process; plans are looked at again whenever they run, so logs stay until the process ends."""
    if not _folders:
        _folders.append(tempfile.TemporaryDirectory(prefix="floeplan-read-", ignore_cleanup_errors=True))
        atexit.register(_folders[0].cleanup)
    return _folders[0].name
