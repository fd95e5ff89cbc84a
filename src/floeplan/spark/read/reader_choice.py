"""The reader of each file of a plan: Spark's own Parquet reader, or Python tasks where Spark's would be wrong.

Reasons against Spark's reader for all files: nanosecond timestamps, UUIDs and defaults inside nested columns, pages
selected by the plan, predicates that depend on a session time zone other than UTC, a session that reads files without
field ids as nulls, and object stores that the JVM cannot reach. Reasons for single files: ORC and Avro, names that
Spark takes for hidden, no field ids in the file, equality deletes on nested columns, and more deletes than a constant
should hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import NestedField, UUIDType

from floeplan.errors import UnsupportedError
from floeplan.formats.stored import PARQUET, READABLE
from floeplan.opaque_types import is_opaque
from floeplan.parquet.footer.footer import read_footer
from floeplan.parquet.source import open_source
from floeplan.predicate.build import field_ids, has_opaque
from floeplan.predicate.stats import to_mask
from floeplan.scan.metadata_columns import is_metadata
from floeplan.scan.model import DEFAULT_CONCURRENCY
from floeplan.scan.plan import ScanPlan
from floeplan.spark.read.columns import DEFAULTED, walk
from floeplan.spark.read.deletes import MAX_WORDS, word_counts
from floeplan.spark.read.file_log import can_read_logs
from floeplan.spark.read.native import (
    NativeReading,
    delete_masks,
    equality_ids,
    key_field,
    matched_pairs,
    needed_fields,
)
from floeplan.spark.types import NANOSECONDS
from floeplan.vectors import Ints, Mask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIELD_ID_CONF = "spark.sql.parquet.fieldId.read.enabled"
MISSING_IDS_CONF = "spark.sql.parquet.fieldId.read.ignoreMissing"
ZONE_CONF = "spark.sql.session.timeZone"
MAX_PAIRS = 2**22
"""The largest number of pairs of a data file and an equality delete in a constant."""

UTC_ZONES = frozenset({"UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z", "+00:00", "Etc/UCT", "Zulu", "UCT"})


@dataclass(frozen=True, slots=True)
class ReaderChoice:
    """The files (rows of the plan) of each reader.

    Attributes:
        native: Files for Spark's Parquet reader.
        arrow: Files for Python tasks.
        reasons: Why files are read in Python tasks, each with the number of files.
    """

    native: Ints
    arrow: Ints
    reasons: tuple[tuple[str, int], ...]


def choose_readers(spark: SparkSession, plan: ScanPlan) -> ReaderChoice:
    """Choose the reader of every file of a plan.

    Raises:
        UnsupportedError: A file is encrypted, or of an unknown format.
    """
    files = plan.files
    encrypted = files.entries.valid("key_metadata")
    formats = files.entries.array("file_format")
    unreadable = encrypted | ~to_mask(pc.is_in(formats, value_set=pa.array(READABLE, formats.type)))
    if unreadable.any():
        row = int(np.argmax(unreadable))
        what = "encrypted" if encrypted[row] else formats[row].as_py()
        path = files.entries.path[row].as_py()
        raise UnsupportedError(
            f"data file {path} is {what}; only unencrypted Parquet, ORC and Avro data files are supported",
            context={"file": path},
        )
    everything, none = np.arange(len(files)), np.zeros(0, dtype=np.int64)
    if not len(files):
        return ReaderChoice(everything, none, ())
    reason = next(_reasons_for_all(spark, plan), None)
    if reason is not None:
        return ReaderChoice(none, everything, ((reason, len(files)),))
    in_tasks = np.zeros(len(files), dtype=np.bool_)
    reasons = []
    for reason, mask in _reasons_by_file(spark, plan):
        if count := int((mask & ~in_tasks).sum()):
            reasons.append((reason, count))
        in_tasks |= mask
    return ReaderChoice(np.flatnonzero(~in_tasks), np.flatnonzero(in_tasks), tuple(reasons))


def _reasons_for_all(spark: SparkSession, plan: ScanPlan) -> Iterator[str]:
    """Reasons to read all files in Python tasks, cheap checks first."""
    if any(groups.selection is not None for groups in plan.files.row_groups.values()):
        yield "the plan selects pages"
    filtered = set(field_ids(plan.compiled.predicate))
    named = {field.field_id for field in plan.schema.fields} | filtered
    if any(map(is_metadata, named)):
        yield "metadata columns are read"
    table_fields = {field.field_id: field for field in plan.target.schema.fields}
    for field in needed_fields(plan):
        yield from _type_reasons(field)
        whole = table_fields.get(field.field_id, field)
        if field.field_type != whole.field_type and any(inner.field_id in filtered for inner in walk(whole)):
            yield f"column {field.name} is read in part, and the predicate may use the rest of it"
    if has_opaque(plan.compiled.predicate) and spark.conf.get(ZONE_CONF) not in UTC_ZONES:
        yield f"the predicate computes values, and the session time zone is {spark.conf.get(ZONE_CONF)}, not UTC"
    # With ignoreMissing Spark reads the columns of files without field ids as NULL instead of failing.
    if str(spark.conf.get(MISSING_IDS_CONF)).lower() == "true":
        yield f"{MISSING_IDS_CONF} is on, which reads files without field ids as nulls"
    # Object stores that the JVM has no connector or credentials for: Spark opens one file of each.
    paths = plan.files.entries.path
    roots = pc.extract_regex(paths.cast(pa.string()), r"^(?P<root>[A-Za-z][A-Za-z0-9+.-]*://[^/]*)")
    for root in pc.unique(pc.struct_field(roots, "root")).drop_null().to_pylist():
        if urlsplit(root).scheme == "file":
            continue
        path = paths[int(to_mask(pc.starts_with(paths, root)).argmax())].as_py()
        try:
            spark.read.option("__globPaths__", "false").schema("nothing int").parquet(path).schema  # noqa: B018
        except Exception as error:  # py4j raises many classes; Python tasks have credentials of their own
            reason = str(getattr(error, "java_exception", error)).splitlines()[0]
            yield f"Spark cannot read {root}: {reason}"


def _type_reasons(field: NestedField) -> Iterator[str]:
    for inner in walk(field):
        if isinstance(inner.field_type, NANOSECONDS):
            yield f"column {field.name} has nanosecond timestamps"
        if is_opaque(inner.field_type):
            yield f"column {field.name} has a {inner.field_type}"
        if inner is not field and isinstance(inner.field_type, UUIDType):
            yield f"column {field.name} has nested UUIDs"
        if inner.initial_default is not None and (inner is not field or not isinstance(inner.field_type, DEFAULTED)):
            yield f"column {field.name} has a default that Spark's reader does not fill in"


def _reasons_by_file(spark: SparkSession, plan: ScanPlan) -> Iterator[tuple[str, Mask]]:
    """Reasons to read some files in Python tasks."""
    files = plan.files
    if not can_read_logs(spark):
        yield "Spark plans on another machine, which cannot read local folders", NativeReading(spark, plan).tagged
    yield "their names begin with _ or ., and Spark would skip them silently", _hidden(files.entries.path)
    # Spark's ORC and Avro readers find columns by name or position, not by Iceberg's field ids, and save little.
    formats = files.entries.array("file_format")
    foreign = to_mask(pc.not_equal(formats, PARQUET))
    for format_ in ("ORC", "AVRO"):
        yield f"they are {format_} files", to_mask(pc.equal(formats, format_))
    if plan.target.table.name_mapping() is not None:
        # Only tables with a name mapping can have files without field ids; footers decide.
        def has_no_ids(path: str) -> bool:
            return not read_footer(open_source(path, plan.target.table.io)).has_field_ids

        without_ids = np.zeros(len(files), dtype=np.bool_)
        paths = files.entries.path.filter(pa.array(~foreign)).to_pylist()
        with ThreadPoolExecutor(DEFAULT_CONCURRENCY, "floeplan-ids") as pool:
            without_ids[~foreign] = list(pool.map(has_no_ids, paths))
        yield "they have no field ids", without_ids
    positional, equality = delete_masks(files)
    yield "their number of rows is unknown", positional & (files.entries.record_count < 0)
    words = np.cumsum(np.where(positional, word_counts(files.entries.record_count), 0))
    yield "the position deletes exceed the largest bitmap", positional & (words > MAX_WORDS)
    if not equality.any():
        return
    data, deletes = matched_pairs(files, np.arange(len(files)))
    if len(data) > MAX_PAIRS:
        yield "they have more equality deletes than fit in a constant", equality
    delete_formats = to_mask(pc.not_equal(files.deletes.array("file_format"), PARQUET))
    by_foreign = np.zeros(len(files), dtype=np.bool_)
    by_foreign[data[delete_formats[deletes]]] = True
    yield "one of their equality deletes is not Parquet", by_foreign
    hidden = np.zeros(len(files), dtype=np.bool_)
    hidden[data[_hidden(files.deletes.path)[deletes]]] = True
    yield "the name of one of their delete files begins with _ or .", hidden
    for field_id in equality_ids(files):
        try:
            reasons = list(_type_reasons(key_field(plan, field_id)))
        except KeyError:
            reasons = [f"their equality deletes have a key that is not a top-level column ({field_id})"]
        if reasons:
            yield reasons[0], equality


def _hidden(paths: pa.Array) -> Mask:
    return to_mask(pc.match_substring_regex(paths, r"/[._][^/]*$"))
