"""Reading with Spark's own Parquet reader: the plan's files as a union of a few branches.

Files that need the same treatment share a branch: those without deletes are read plainly; positions are tested as
bits, keys are anti-joined (``floeplan.spark.read.deletes``); an identity partition value stands in where a file may
lack
its column. The predicate of the scan stays as a filter on every branch, except where metadata proves it for all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, FloatType, NestedField
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import LongType, StructField, StructType

from floeplan.metadata.delete_index import DeleteKind
from floeplan.metadata.manifests.entries import partition_column
from floeplan.metadata.manifests.typed_values import to_logical
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.build import field_ids
from floeplan.predicate.tristate import TriState
from floeplan.scan.model import PlannedFiles
from floeplan.scan.scan_plan import ScanPlan
from floeplan.spark.filters import quoted, spark_sql
from floeplan.spark.read.columns import FIELD_ID, ROW_INDEX, NameHistory, ReadColumn, walk
from floeplan.spark.read.deletes import MAX_WORDS, START_BITS, not_deleted, word_offsets
from floeplan.spark.read.file_log import TAG, process_folder, read_logged, read_named, sees_logs
from floeplan.spark.types import spark_type
from floeplan.vectors import Ints

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Which column tells a row its number in its file.
#
# Rule: Spark's Parquet reader counts rows in a column of its own, which ``_metadata.row_index`` is made of row by row;
# asked for directly it costs less. That name is not documented, and a reader put in place of Spark's may leave it
# null or
# fill it otherwise, so that deleted rows would come back and others be lost. It is used only in a session where a small
# file of several row groups, read the same way, came back with the right numbers.
#
# Fail-safe: any doubt (another Spark, an error, tasks that do not see the folders of this machine) means the documented
# column.


DOCUMENTED = "_metadata.row_index"
KNOWN_TO_COUNT = "4.1."
"""The Spark whose reader has ``ROW_INDEX``."""
_ROWS, _ROWS_PER_GROUP, _SKIPPED = 12, 3, 7
"""The file of the probe, and how many of its rows a filter leaves out: two row groups and a part of the third."""

_proven: WeakKeyDictionary[SparkSession, bool] = WeakKeyDictionary()


def row_number(spark: SparkSession) -> str:
    """The column to ask for in a session."""
    if not spark.version.startswith(KNOWN_TO_COUNT):
        return DOCUMENTED
    if spark not in _proven:
        _proven[spark] = _counts_rightly(spark)
    return ROW_INDEX if _proven[spark] else DOCUMENTED


def _counts_rightly(spark: SparkSession) -> bool:
    path = Path(process_folder()) / "numbered.parquet"
    field = pa.field("n", pa.int64(), metadata={"PARQUET:field_id": "1"})
    pq.write_table(pa.table([pa.array(range(_ROWS))], pa.schema([field])), path, row_group_size=_ROWS_PER_GROUP)
    asked = StructType([StructField("n", LongType(), True, {FIELD_ID: 1}), StructField(ROW_INDEX, LongType())])
    sizes = np.array([path.stat().st_size])
    try:
        whole = read_logged(spark, asked, pa.array([str(path)]), sizes, np.zeros(1, dtype=np.int64), may_miss=True)
        found = whole.unionAll(whole.where(f"n >= {_SKIPPED}")).collect()
    except Exception:
        return False
    return sorted(map(tuple, found)) == sorted((n, n) for n in (*range(_ROWS), *range(_SKIPPED, _ROWS)))


# ---

BROADCAST_BYTES = 64 * 2**20
"""Equality deletes up to this size are sent to every executor; larger ones are joined as Spark sees fit."""

_PLACE = f"CAST({TAG} AS INT)"
"""The tag as a place in an array."""
_PLACE_BEFORE_START = f"CAST(shiftright({TAG}, {START_BITS}) AS INT)"
"""The same where the tag tells also at which word the bits of the file start."""


@dataclass(frozen=True, slots=True)
class Branch:
    """Files that are read in the same way: rows of the plan, and what is done to theirs."""

    rows: Ints
    constants: tuple[int, ...]
    positional: bool
    equality: bool

    @property
    def tagged(self) -> bool:
        """Whether rows must know their file."""
        return self.placed or self.positional

    @property
    def placed(self) -> bool:
        """Whether rows look up what belongs to their file by its place among the files."""
        return bool(self.constants) or self.equality

    @property
    def place(self) -> str:
        """The place of a row's file, in SQL."""
        return _PLACE_BEFORE_START if self.positional else _PLACE

    @property
    def start(self) -> str:
        """The word at which the bits of a row's file start, in SQL."""
        return f"({TAG} & {MAX_WORDS - 1})" if self.placed else TAG

    def describe(self) -> str:
        """The treatment in words."""
        treatments = (
            ("position bits", self.positional),
            ("key anti-join", self.equality),
            ("partition values where a column is missing", bool(self.constants)),
        )
        return ", ".join(words for words, on in treatments if on) or "plain"


@dataclass(frozen=True)
class NativeReading:
    """Builds the branches of one plan."""

    spark: SparkSession
    plan: ScanPlan

    def branches(self, rows: Ints) -> list[Branch]:
        """Group files by treatment."""
        constants = list(dict.fromkeys(self._constants.values()))
        code_of = {spec_id: constants.index(found) for spec_id, found in self._constants.items()}
        specs = self.plan.files.entries.spec_id[rows]
        positional, equality = (mask[rows] for mask in delete_masks(self.plan.files))
        codes = np.array([code_of[spec_id] for spec_id in specs.tolist()], dtype=np.int64)
        keys = codes * 4 + positional * 2 + equality
        return [
            Branch(rows[keys == key], constants[key // 4], bool(key & 2), bool(key & 1))
            for key in np.unique(keys).tolist()
        ]

    def frame(self, branch: Branch) -> DataFrame:
        """The matching rows of a branch in the columns of the plan."""
        columns = {
            field.field_id: ReadColumn.of(field, self.history, default=field.field_id not in branch.constants)
            for field in (*self.fields, *(self.key_fields.values() if branch.equality else ()))
        }
        shown = self._positions(self._read(branch, columns), branch)
        selected = dict(self._selected(branch, columns))
        shown = _select(shown, selected)
        if branch.equality:
            shown = self._without_keys(shown, branch)
        if (self.plan.files.states[branch.rows] != TriState.TRUE).any():
            shown = shown.where(spark_sql(self.plan.compiled.predicate))
        asked = [field.name for field in self.plan.schema.fields]
        return shown if list(selected) == asked else shown.selectExpr(*map(quoted, asked))

    @property
    def tagged(self) -> npt.NDArray[np.bool_]:
        """Which files of the plan have rows that must know their file."""
        mask = np.zeros(len(self.plan.files), dtype=np.bool_)
        for branch in self.branches(np.arange(len(mask))):
            mask[branch.rows] = branch.tagged
        return mask

    @cached_property
    def history(self) -> NameHistory:
        """The names of the table's columns, now and then."""
        return NameHistory(self.plan.target.metadata, self.plan.target.schema)

    @cached_property
    def fields(self) -> tuple[NestedField, ...]:
        """The columns to show and those of the predicate."""
        return needed_fields(self.plan)

    @cached_property
    def key_fields(self) -> dict[int, NestedField]:
        """Keys of equality deletes that are not among the columns read anyway, as the newest schema has them."""
        read = {field.field_id for field in self.fields}
        return {i: key_field(self.plan, i) for i in equality_ids(self.plan.files) if i not in read}

    @cached_property
    def _union(self) -> UnionPartitionType:
        return UnionPartitionType.of_table(self.plan.target.metadata)

    @cached_property
    def _constants(self) -> dict[int, tuple[int, ...]]:
        """For each spec the columns read that are sources of identity fields."""
        read = {field.field_id for field in self.fields} | self.key_fields.keys()
        found = {}
        for spec_id, spec in self._union.specs.items():
            sources = [f.source_id for f in spec.fields if isinstance(f.transform, IdentityTransform)]
            found[spec_id] = tuple(sorted(read.intersection(sources)))
        return found

    def _read(self, branch: Branch, columns: dict[int, ReadColumn]) -> DataFrame:
        entries = self.plan.files.entries.take(branch.rows)
        counts = branch.positional and self._row_index != DOCUMENTED
        counted = [StructField(self._row_index, LongType())] if counts else []
        schema = StructType([*(column.asked for column in columns.values()), *counted])
        if not sees_logs(self.spark):
            return read_named(self.spark, schema, entries.path.to_pylist())
        return read_logged(self.spark, schema, entries.path, entries.ints("file_size_in_bytes"), self._tags(branch))

    @cached_property
    def _row_index(self) -> str:
        return row_number(self.spark)

    def _tags(self, branch: Branch) -> Ints:
        places = np.arange(len(branch.rows))
        if not branch.positional:
            return places
        starts = word_offsets(self.plan.files.entries.record_count[branch.rows])
        return (places << START_BITS) | starts if branch.placed else starts

    def _positions(self, read: DataFrame, branch: Branch) -> DataFrame:
        if not branch.positional:
            return read
        files, table = self.plan.files, self.plan.target.table
        return read.where(not_deleted(self.spark, files, branch.rows, table, start=branch.start, row=self._row_index))

    def _selected(self, branch: Branch, columns: dict[int, ReadColumn]) -> Iterator[tuple[str, str | Column]]:
        for field_id, column in columns.items():
            value: str | Column = column.shown
            if field_id in branch.constants:
                stated = F.get(self._partition_values(branch, column.field), F.expr(branch.place))
                value = F.coalesce(F.expr(column.shown), stated)
            yield self._name(column.field), value
        if branch.equality:
            yield self._tag, branch.place

    def _name(self, field: NestedField) -> str:
        return f"{self.history.prefix}k{field.field_id}" if field.field_id in self.key_fields else field.name

    @property
    def _tag(self) -> str:
        return f"{self.history.prefix}tag"

    def _partition_values(self, branch: Branch, field: NestedField) -> Column:
        """For each file of the branch the value of the identity field on a column; a spec has at most one."""
        entries = self.plan.files.entries.take(branch.rows)
        values = [
            to_logical(entries.partition_types[f.id], entries.array(partition_column(f.id)))
            for f in self._union.fields
            if f.bound.source_id == field.field_id and isinstance(f.bound.transform, IdentityTransform)
        ]
        type_ = spark_type(field.field_type, field.name)
        return self._constant(pc.coalesce(*(value.cast(to_arrow_type(type_)) for value in values)))

    def _constant(self, values: pa.Array) -> Column:
        """An array that is the same for all rows."""
        listed = pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), values)
        whole = listed.cast(pa.list_(values.type))
        return self.spark.createDataFrame(pa.table({"values": whole})).scalar()

    def _without_keys(self, rows: DataFrame, branch: Branch) -> DataFrame:
        files = self.plan.files
        pairs = matched_pairs(files, branch.rows)
        by_keys: dict[tuple[int, ...], list[int]] = {}
        for delete in np.unique(pairs[1]).tolist():
            by_keys.setdefault(_keys_of(files, delete), []).append(delete)
        for number, (keys, deletes) in enumerate(by_keys.items()):
            rows = self._anti_join(rows, keys, np.array(deletes, dtype=np.int64), pairs, number)
        return rows

    def _anti_join(
        self, rows: DataFrame, keys: tuple[int, ...], deletes: Ints, pairs: tuple[Ints, Ints], number: int
    ) -> DataFrame:
        files, prefix = self.plan.files, f"{self.history.prefix}d{number}_"
        fields = [key_field(self.plan, field_id) for field_id in keys]
        columns = [ReadColumn.of(field, self.history, default=False) for field in fields]
        entries = files.deletes.take(deletes)
        sizes = entries.ints("file_size_in_bytes")
        schema = StructType([column.asked for column in columns])
        listed = read_logged(self.spark, schema, entries.path, sizes, np.arange(len(deletes)))
        shown = {f"{prefix}{column.field.field_id}": column.shown for column in columns}
        listed = _select(listed, {**shown, f"{prefix}tag": _PLACE})
        no_nulls = all((entries.ints(f"null_count.{field_id}") == 0).all() for field_id in keys)
        matches = [_same_key(self._name(f), f"{prefix}{f.field_id}", f, null_safe=not no_nulls) for f in fields]
        concerned = np.isin(pairs[1], deletes)
        if concerned.sum() < len(np.unique(pairs[0])) * len(deletes):
            of_file = self._matched_deletes(pairs[0][concerned], np.searchsorted(deletes, pairs[1][concerned]))
            matches.append(F.array_contains(F.get(of_file, F.col(self._tag)), F.col(f"{prefix}tag")))
        if sizes.sum() <= BROADCAST_BYTES:
            listed = F.broadcast(listed)
        return rows.join(listed, reduce(and_, matches), "left_anti")

    def _matched_deletes(self, data: Ints, deletes: Ints) -> Column:
        """For each data file the deletes that apply to it."""
        order = np.argsort(data, kind="stable")
        offsets = np.searchsorted(data[order], np.arange(int(data.max()) + 2))
        return self._constant(
            pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(deletes[order], pa.int32()))
        )


def needed_fields(plan: ScanPlan) -> tuple[NestedField, ...]:
    """The columns a plan shows, then whole those of its predicate that are not among them."""
    tops = {field.field_id: field for field in plan.schema.fields}
    asked = set(field_ids(plan.compiled.predicate))
    for field in plan.target.schema.fields:
        if any(inner.field_id in asked for inner in walk(field)):
            tops.setdefault(field.field_id, field)
    return tuple(tops.values())


def delete_masks(files: PlannedFiles) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which files have position deletes or vectors, and which have equality deletes."""
    data = np.repeat(np.arange(len(files)), files.matches.counts)
    positional = files.delete_kinds[files.matches.deletes] >= DeleteKind.POSITION_FILE
    masks = np.zeros((2, len(files)), dtype=np.bool_)
    masks[0, data[positional]] = True
    masks[1, data[~positional]] = True
    return masks[0], masks[1]


def matched_pairs(files: PlannedFiles, rows: Ints) -> tuple[Ints, Ints]:
    """Pairs of a file, counted within ``rows``, and an equality delete that applies to it."""
    data = np.repeat(np.arange(len(rows)), files.matches.counts[rows])
    starts = files.matches.offsets[rows]
    within = np.arange(len(data)) - np.repeat(
        np.cumsum(files.matches.counts[rows]) - files.matches.counts[rows], files.matches.counts[rows]
    )
    deletes = files.matches.deletes[starts[data] + within]
    keys = files.delete_kinds[deletes] < DeleteKind.POSITION_FILE
    return data[keys], deletes[keys]


def equality_ids(files: PlannedFiles) -> list[int]:
    """The field ids of all equality keys that apply to a file of the plan."""
    applied = np.unique(files.matches.deletes)
    keyed = applied[files.delete_kinds[applied] < DeleteKind.POSITION_FILE]
    return sorted({field_id for delete in keyed.tolist() for field_id in _keys_of(files, delete)})


def key_field(plan: ScanPlan, field_id: int) -> NestedField:
    """A key column as the newest schema that has it at top level knows it."""
    known = sorted(plan.target.metadata.schemas, key=lambda schema: -schema.schema_id)
    for schema in (plan.target.schema, *known):
        for field in schema.fields:
            if field.field_id == field_id:
                return field
    raise KeyError(field_id)


def _keys_of(files: PlannedFiles, delete: int) -> tuple[int, ...]:
    return tuple(files.deletes.table.column("equality_ids")[delete].as_py())


def _select(rows: DataFrame, named: Mapping[str, str | Column]) -> DataFrame:
    """Columns by name; all of them as one text where they can be, since every ``Column`` takes calls of the JVM."""
    if all(isinstance(value, str) for value in named.values()):
        return rows.selectExpr(*(f"{value} AS {quoted(name)}" for name, value in named.items()))
    return rows.select(*(_column(value).alias(name) for name, value in named.items()))


def _column(value: str | Column) -> Column:
    return F.expr(value) if isinstance(value, str) else value


def _same_key(left: str, right: str, field: NestedField, *, null_safe: bool) -> Column:
    """Equality of keys; floating point by its text, in which -0.0 is not 0.0."""
    ours, theirs = F.col(quoted(left)), F.col(quoted(right))
    if isinstance(field.field_type, FloatType | DoubleType):
        ours, theirs = ours.cast("string"), theirs.cast("string")
    return ours.eqNullSafe(theirs) if null_safe else ours == theirs
