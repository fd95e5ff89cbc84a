"""Which files Spark's own reader may read, and why the others may not.

Spark's reader is refused, for all files: nanosecond timestamps, UUIDs and defaults inside nested columns, pages
selected by the plan, predicates whose meaning depends on a session that is not in UTC, a session that reads files
without field ids as nulls, and stores the JVM cannot reach. For single files: names Spark takes for hidden (they would
be left out in silence), no field ids in the file, keys of equality deletes inside nested columns, more deletes than a
constant should hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import NestedField, UUIDType

from floeplan.errors import UnsupportedError
from floeplan.parquet.footer.footer import read_footer
from floeplan.parquet.source import open_source
from floeplan.predicate.build import field_ids, has_opaque
from floeplan.predicate.stats import to_mask
from floeplan.scan.options import DEFAULT_CONCURRENCY
from floeplan.scan.scan_plan import ScanPlan
from floeplan.spark.read.columns import DEFAULTED, walk
from floeplan.spark.read.deletes import MAX_WORDS, word_counts
from floeplan.spark.read.file_log import sees_logs
from floeplan.spark.read.native import (
    NativeReading,
    delete_masks,
    equality_ids,
    key_field,
    matched_pairs,
    needed_fields,
)
from floeplan.spark.types import NANOSECONDS
from floeplan.vectors import Mask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIELD_ID_CONF = "spark.sql.parquet.fieldId.read.enabled"
MISSING_IDS_CONF = "spark.sql.parquet.fieldId.read.ignoreMissing"
ZONE_CONF = "spark.sql.session.timeZone"
MAX_PAIRS = 2**22
"""Pairs of a data file and an equality delete that a constant may hold."""

_UTC = frozenset({"UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z", "+00:00", "Etc/UCT", "Zulu", "UCT"})


@dataclass(frozen=True, slots=True)
class Route:
    """Rows of the plan read by Spark's reader, those read in Python tasks, and the reasons for the latter."""

    native: npt.NDArray[np.int64]
    arrow: npt.NDArray[np.int64]
    reasons: tuple[tuple[str, int], ...]


def route(spark: SparkSession, plan: ScanPlan) -> Route:
    """Choose a way for every file of a plan."""
    _refuse_unreadable(plan)
    everything = np.arange(len(plan.files))
    none = np.zeros(0, dtype=np.int64)
    if not len(plan.files):
        return Route(everything, none, ())
    obstacle = next(_obstacles(spark, plan), None)
    if obstacle is not None:
        return Route(none, everything, ((obstacle, len(plan.files)),))
    refused = np.zeros(len(plan.files), dtype=np.bool_)
    reasons = []
    for reason, mask in _file_obstacles(spark, plan):
        if count := int((mask & ~refused).sum()):
            reasons.append((reason, count))
        refused |= mask
    return Route(np.flatnonzero(~refused), np.flatnonzero(refused), tuple(reasons))


def _refuse_unreadable(plan: ScanPlan) -> None:
    """Encrypted files and other formats are an error before anything runs."""
    entries = plan.files.entries
    wrong = entries.valid("key_metadata") | to_mask(pc.not_equal(entries.array("file_format"), "PARQUET"))
    if wrong.any():
        row = int(np.argmax(wrong))
        what = "encrypted" if entries.valid("key_metadata")[row] else entries.array("file_format")[row].as_py()
        path = entries.path[row].as_py()
        raise UnsupportedError(
            f"data file {path} is {what}; only plain Parquet data files are read", context={"file": path}
        )


def _obstacles(spark: SparkSession, plan: ScanPlan) -> Iterator[str]:
    """Reasons for which Spark's reader is refused altogether, cheap ones first."""
    if any(groups.selection is not None for groups in plan.files.row_groups.values()):
        yield "the plan selects pages"
    whole = {field.field_id: field for field in plan.target.schema.fields}
    asked = set(field_ids(plan.compiled.predicate))
    for field in needed_fields(plan):
        yield from _type_obstacles(field)
        in_predicate = any(inner.field_id in asked for inner in walk(whole.get(field.field_id, field)))
        if in_predicate and field.field_type != whole[field.field_id].field_type:
            yield f"a part of column {field.name} is shown and all of it may be filtered by"
    if has_opaque(plan.compiled.predicate) and spark.conf.get(ZONE_CONF) not in _UTC:
        yield f"the predicate computes, and the session is in {spark.conf.get(ZONE_CONF)} and not in UTC"
    if str(spark.conf.get(MISSING_IDS_CONF)).lower() == "true":
        yield f"{MISSING_IDS_CONF} is on, which reads files without field ids as nulls"
    yield from _unreachable(spark, plan)


def _type_obstacles(field: NestedField) -> Iterator[str]:
    for inner in walk(field):
        if isinstance(inner.field_type, NANOSECONDS):
            yield f"column {field.name} has nanoseconds"
        if inner is not field and isinstance(inner.field_type, UUIDType):
            yield f"column {field.name} has UUIDs within"
        if inner.initial_default is not None and (inner is not field or not isinstance(inner.field_type, DEFAULTED)):
            yield f"column {field.name} has a default that Spark's reader does not fill in"


def _unreachable(spark: SparkSession, plan: ScanPlan) -> Iterator[str]:
    """Stores the JVM has no connector for: asked by looking at one file of each."""
    paths = plan.files.entries.path
    roots = pc.extract_regex(paths.cast(pa.string()), r"^(?P<root>[A-Za-z][A-Za-z0-9+.-]*://[^/]*)")
    for root in pc.unique(pc.struct_field(roots, "root")).drop_null().to_pylist():
        if urlsplit(root).scheme == "file":
            continue
        first = to_mask(pc.starts_with(paths, root)).argmax()
        reason = _failure(spark, paths[int(first)].as_py())
        if reason is not None:
            yield f"Spark cannot read {root}: {reason}"


def _failure(spark: SparkSession, path: str) -> str | None:
    """Why Spark cannot open a file; whatever the reason, Python tasks are tried instead."""
    try:
        spark.read.option("__globPaths__", "false").schema("nothing int").parquet(path).schema  # noqa: B018
    except Exception as error:
        return str(getattr(error, "java_exception", error)).splitlines()[0]
    return None


def _file_obstacles(spark: SparkSession, plan: ScanPlan) -> Iterator[tuple[str, Mask]]:
    files = plan.files
    if not sees_logs(spark):
        yield "Spark plans on another machine, which does not see this one's folders", NativeReading(spark, plan).tagged
    hidden = _hidden(files.entries.path)
    yield "their names begin with _ or . and Spark would leave them out", hidden
    yield "they carry no field ids", _without_ids(plan)
    positional, equality = delete_masks(files)
    yield "the number of their rows is not known", positional & (files.entries.record_count < 0)
    words = np.cumsum(np.where(positional, word_counts(files.entries.record_count), 0))
    yield "the deletes before them fill a constant", positional & (words > MAX_WORDS)
    if equality.any():
        yield from _equality_obstacles(plan, equality)


def _equality_obstacles(plan: ScanPlan, equality: Mask) -> Iterator[tuple[str, Mask]]:
    files = plan.files
    everything = np.arange(len(files))
    data, deletes = matched_pairs(files, everything)
    if len(data) > MAX_PAIRS:
        yield "they have more equality deletes than a constant should hold", equality
    hidden = np.zeros(len(files), dtype=np.bool_)
    hidden[data[_hidden(files.deletes.path)[deletes]]] = True
    yield "a delete file of theirs has a name that Spark would leave out", hidden
    for field_id in equality_ids(files):
        try:
            obstacles = list(_type_obstacles(key_field(plan, field_id)))
        except KeyError:
            obstacles = [f"their equality deletes have a key that is no top-level column ({field_id})"]
        if obstacles:
            yield obstacles[0], equality


def _hidden(paths: pa.Array) -> Mask:
    return to_mask(pc.match_substring_regex(paths, r"/[._][^/]*$"))


def _without_ids(plan: ScanPlan) -> Mask:
    """Files whose columns have no ids. Only a table with a name mapping can have such files: theirs are opened."""
    table = plan.target.table
    if table.name_mapping() is None:
        return np.zeros(len(plan.files), dtype=np.bool_)

    def carries_none(path: str) -> bool:
        return not read_footer(open_source(path, table.io)).has_field_ids

    with ThreadPoolExecutor(DEFAULT_CONCURRENCY, "floeplan-ids") as pool:
        return np.fromiter(pool.map(carries_none, plan.files.entries.path.to_pylist()), dtype=np.bool_)
