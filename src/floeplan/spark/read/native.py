"""Read with Spark's own Parquet reader: the files of a plan as a union of a few branches.

Files that need the same treatment share a branch. Files without deletes are read plainly, because merely reading the
row index costs as much as the test of a position delete, unless they are so few that a scan of their own costs more.
Position deletes are tested against a bitmap, equality deletes anti-joined (``deletes``). A column that a file may lack
because it is an identity partition column is filled from the partition value, as the spec requires. The predicate of
the scan stays as a filter on every branch, unless metadata proves that it holds for all rows; it comes before the test
of deletes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, FloatType, NestedField
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import LongType, StructField, StructType

from floeplan.metadata.delete_index import DeleteKind
from floeplan.metadata.manifests.entries import partition_column
from floeplan.metadata.manifests.values import to_logical
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.build import field_ids
from floeplan.predicate.stats import TriState
from floeplan.scan.model import PlannedFiles
from floeplan.scan.plan import ScanPlan
from floeplan.spark.jvm import select_texts
from floeplan.spark.read.columns import FIELD_ID, ROW_INDEX, NameHistory, ReadColumn, walk
from floeplan.spark.read.deletes import MAX_WORDS, START_BITS, not_deleted, word_counts, word_offsets
from floeplan.spark.read.file_log import TAG, can_read_logs, process_folder, read_logged, read_named
from floeplan.spark.types import default_size, quoted, spark_sql, spark_type, sql_type
from floeplan.vectors import Ints, Mask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BROADCAST_BYTES = 64 * 2**20
"""Equality deletes up to this size are broadcast; for larger ones Spark chooses the join."""

_ROW_BYTES, _TAG_BYTES = 8, 8
"""Spark's estimates of the overhead of a row, and of the file modification time, of which tags are made."""
_FEW = 0.25
"""The largest fraction of rows without position deletes that are read as if their files had some."""
_ORDINAL = f"CAST({TAG} AS INT)"
"""The tag as the ordinal of the file within its branch."""


@dataclass(frozen=True, slots=True)
class Branch:
    """Files that are read with the same treatment, as rows of the plan.

    Attributes:
        rows: The files.
        constants: Field ids of columns that are filled from partition values.
        positional: Whether the files have position deletes or deletion vectors.
        equality: Whether the files have equality deletes.
    """

    rows: Ints
    constants: tuple[int, ...]
    positional: bool
    equality: bool

    @property
    def tagged(self) -> bool:
        """Whether rows need the tag of their file."""
        return self.has_ordinal or self.positional

    @property
    def has_ordinal(self) -> bool:
        """Whether rows look up values by the ordinal of their file."""
        return bool(self.constants) or self.equality

    @property
    def ordinal(self) -> str:
        """The ordinal of a row's file, as SQL; with position deletes the lower bits of a tag are ``start``."""
        return f"CAST(shiftright({TAG}, {START_BITS}) AS INT)" if self.positional else _ORDINAL

    @property
    def start(self) -> str:
        """The first word of the bitmap of a row's file, as SQL."""
        return f"({TAG} & {MAX_WORDS - 1})" if self.has_ordinal else TAG

    def describe(self) -> str:
        """The treatment, for ``explain``."""
        treatments = (
            ("position deletes as a bitmap", self.positional),
            ("equality deletes as an anti-join", self.equality),
            ("partition values for missing columns", bool(self.constants)),
        )
        return ", ".join(text for text, applies in treatments if applies) or "plain"


@dataclass(frozen=True)
class NativeReading:
    """Builds the DataFrames of one plan."""

    spark: SparkSession
    plan: ScanPlan

    def branches(self, rows: Ints) -> list[Branch]:
        """Group files by treatment."""
        specs = self.plan.files.entries.spec_id[rows]
        positional, equality = (mask[rows] for mask in delete_masks(self.plan.files))
        positional = self._joined_by_deletes(rows, positional)
        of_spec = self._joined_constants(set(specs.tolist())) if positional.all() else self._constants
        constants = list(dict.fromkeys(of_spec.values()))
        code_of = {spec_id: constants.index(found) for spec_id, found in of_spec.items()}
        codes = np.array([code_of[spec_id] for spec_id in specs.tolist()], dtype=np.int64)
        keys = codes * 4 + positional * 2 + equality
        return [
            Branch(rows[keys == key], constants[key // 4], bool(key & 2), bool(key & 1))
            for key in np.unique(keys).tolist()
        ]

    def _joined_by_deletes(self, rows: Ints, positional: Mask) -> Mask:
        """Which files are read with the test of position deletes: all, when few rows have none.

        A second scan costs more tasks and hides the size of the first from Spark's planner; the test of a row in a file
        without deletes costs what it costs elsewhere.
        """
        counts = self.plan.files.entries.record_count[rows]
        few = counts[~positional].sum() <= _FEW * counts.sum()
        fits = bool((counts >= 0).all()) and word_counts(counts).sum() <= MAX_WORDS
        return np.ones_like(positional) if positional.any() and few and fits else positional

    def _joined_constants(self, specs: set[int]) -> dict[int, tuple[int, ...]]:
        """By spec id, the columns to fill from partition values: those of all specs, where that is as good.

        A spec without the partition field has no value, and so leaves a column as it is. Not for columns with a
        default, which Spark's reader fills in instead, nor for columns of the predicate, which is pushed down to files.
        """
        joined = tuple(sorted(set().union(*(self._constants[spec_id] for spec_id in specs))))
        defaulted = {field.field_id for field in self.fields if field.initial_default is not None}
        if not defaulted.union(field_ids(self.plan.compiled.predicate)).isdisjoint(joined):
            return self._constants
        return dict.fromkeys(self._constants, joined)

    def frame(self, branch: Branch, schema: Schema | None = None) -> DataFrame:
        """The matching rows of a branch in the columns of a schema, by default the plan's; see ``columns_of``."""
        files = self.plan.files
        columns = {
            field.field_id: ReadColumn.of(field, self.history, default=field.field_id not in branch.constants)
            for field in (*self.fields, *(self.key_fields.values() if branch.equality else ()))
        }
        rows = self._read(branch, columns)
        is_filtered = bool((files.states[branch.rows] != TriState.TRUE).any())
        if branch.positional and not is_filtered:
            rows = rows.where(self._not_deleted(branch, branch.start, self._row_index))
        # The table's columns, under their names; keys of equality deletes and columns of the tests only until those.
        selected: dict[str, str | Column] = {}
        for field_id, column in columns.items():
            value: str | Column = column.expression
            if field_id in branch.constants:
                from_partition = F.get(self._partition_values(branch, column.field), F.expr(branch.ordinal))
                value = F.coalesce(F.expr(column.expression), from_partition)
            selected[self._name(column.field)] = value
        if branch.equality:
            selected[self._tag] = branch.ordinal
        start, index = f"{self.history.prefix}start", f"{self.history.prefix}row"
        if branch.positional and is_filtered:
            selected |= {start: branch.start, index: self._row_index}
        result = columns_of(self.plan, schema or self.plan.schema)
        if not is_filtered and not branch.equality:
            return select(rows, {name: selected.get(name, value) for name, value in result.items()})
        rows = select(rows, selected)
        if is_filtered:
            # Before the test of deletes, which costs more than most comparisons; Spark evaluates them in this order.
            matches = F.expr(spark_sql(self.plan.compiled.predicate))
            rows = rows.where(matches & self._not_deleted(branch, start, index) if branch.positional else matches)
        if branch.equality:
            rows = self._without_equality_deleted(rows, branch)
        return rows if list(selected) == list(result) else select(rows, result)

    def _not_deleted(self, branch: Branch, start: str, row: str) -> Column:
        """Whether a row has no position delete; ``start`` and ``row`` are those of ``is_kept``."""
        return not_deleted(self.spark, self.plan.files, branch.rows, self.plan.target.table, start=start, row=row)

    @property
    def tagged(self) -> Mask:
        """The files of the plan whose rows need the tag of their file."""
        mask = np.zeros(len(self.plan.files), dtype=np.bool_)
        for branch in self.branches(np.arange(len(mask))):
            mask[branch.rows] = branch.tagged
        return mask

    @cached_property
    def history(self) -> NameHistory:
        """The names of columns over the table's schema history."""
        return NameHistory(self.plan.target.metadata, self.plan.target.schema)

    @cached_property
    def fields(self) -> tuple[NestedField, ...]:
        """The columns of the scan and of its predicate."""
        return needed_fields(self.plan)

    @cached_property
    def key_fields(self) -> dict[int, NestedField]:
        """Keys of equality deletes that are not among ``fields``, from the newest schema that has them."""
        read = {field.field_id for field in self.fields}
        return {i: key_field(self.plan, i) for i in equality_ids(self.plan.files) if i not in read}

    @cached_property
    def _union(self) -> UnionPartitionType:
        return UnionPartitionType.of_table(self.plan.target.metadata)

    @cached_property
    def _constants(self) -> dict[int, tuple[int, ...]]:
        """By spec id, the columns to read that are sources of identity partition fields."""
        read = {field.field_id for field in self.fields} | self.key_fields.keys()
        found = {}
        for spec_id, spec in self._union.specs.items():
            sources = [f.source_id for f in spec.fields if isinstance(f.transform, IdentityTransform)]
            found[spec_id] = tuple(sorted(read.intersection(sources)))
        return found

    def _read(self, branch: Branch, columns: dict[int, ReadColumn]) -> DataFrame:
        """The requested columns of the files of a branch; the tag of a file has its ordinal above its first word."""
        entries = self.plan.files.entries.take(branch.rows)
        internal = branch.positional and self._row_index != DOCUMENTED
        row_index = [StructField(self._row_index, LongType())] if internal else []
        schema = StructType([*(column.requested for column in columns.values()), *row_index])
        if not can_read_logs(self.spark):
            return read_named(self.spark, schema, entries.path.to_pylist())
        tags = np.arange(len(branch.rows))
        if branch.positional:
            starts = word_offsets(entries.record_count)
            tags = (tags << START_BITS) | starts if branch.has_ordinal else starts
        sizes = entries.ints("file_size_in_bytes")
        size = self._estimated_size(branch, schema, entries.record_count)
        return read_logged(self.spark, schema, entries.path, sizes, tags, size=size)

    def _estimated_size(self, branch: Branch, schema: StructType, records: Ints) -> tuple[int, int] | None:
        """The size for which Spark estimates what Iceberg does (records of values of default sizes), and the records.

        Spark scales the size of a relation by the widths of the selected columns and of all columns that it reads, the
        row index and ``_metadata`` included. Never below the stored size of the columns, for long strings.
        """
        if (records < 0).any():
            return None
        read = sum(default_size(field.dataType) for field in schema) + _TAG_BYTES * branch.tagged
        selected = sum(default_size(spark_type(field.field_type, field.name)) for field in self.fields)
        rows = int(records.sum())
        size = rows * selected * (_ROW_BYTES + read) // (_ROW_BYTES + selected)
        stored = self.plan.summary.bytes_kept * rows // max(1, int(self.plan.files.entries.record_count.sum()))
        return max(size, stored), rows

    @cached_property
    def _row_index(self) -> str:
        return row_index_column(self.spark)

    def _name(self, field: NestedField) -> str:
        return f"{self.history.prefix}k{field.field_id}" if field.field_id in self.key_fields else field.name

    @property
    def _tag(self) -> str:
        return f"{self.history.prefix}tag"

    def _partition_values(self, branch: Branch, field: NestedField) -> Column:
        """The value of a column's identity partition field in each file of a branch; a spec has at most one."""
        entries = self.plan.files.entries.take(branch.rows)
        values = [
            to_logical(entries.partition_types[f.id], entries.array(partition_column(f.id)))
            for f in self._union.fields
            if f.bound.source_id == field.field_id and isinstance(f.bound.transform, IdentityTransform)
        ]
        type_ = spark_type(field.field_type, field.name)
        return self._constant(pc.coalesce(*(value.cast(to_arrow_type(type_)) for value in values)))

    def _constant(self, values: pa.Array) -> Column:
        """An array constant, from a scalar subquery."""
        listed = pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), values)
        return self.spark.createDataFrame(pa.table({"values": listed.cast(pa.list_(values.type))})).scalar()

    def _without_equality_deleted(self, rows: DataFrame, branch: Branch) -> DataFrame:
        """The rows that no equality delete removes: one anti-join per set of key columns."""
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
        prefix = f"{self.history.prefix}d{number}_"
        columns = [ReadColumn.of(key_field(self.plan, key), self.history, default=False) for key in keys]
        entries = self.plan.files.deletes.take(deletes)
        sizes = entries.ints("file_size_in_bytes")
        schema = StructType([column.requested for column in columns])
        listed = read_logged(self.spark, schema, entries.path, sizes, np.arange(len(deletes)))
        keys_by_name = {f"{prefix}{column.field.field_id}": column.expression for column in columns}
        listed = select(listed, {**keys_by_name, f"{prefix}tag": _ORDINAL})
        # Plain equality is cheaper than <=>, and correct when the delete files have no null keys.
        no_nulls = all((entries.ints(f"null_count.{key}") == 0).all() for key in keys)
        matches = []
        for column in columns:
            ours, theirs = F.col(quoted(self._name(column.field))), F.col(quoted(f"{prefix}{column.field.field_id}"))
            if isinstance(column.field.field_type, FloatType | DoubleType):
                # For Spark's =, unlike Iceberg, -0.0 is 0.0; as strings they differ.
                ours, theirs = ours.cast("string"), theirs.cast("string")
            matches.append(ours == theirs if no_nulls else ours.eqNullSafe(theirs))
        # Unless every delete applies to every file, match each row only with the deletes of its file.
        applicable = np.isin(pairs[1], deletes)
        if applicable.sum() < len(np.unique(pairs[0])) * len(deletes):
            data, applied = pairs[0][applicable], np.searchsorted(deletes, pairs[1][applicable])
            order = np.argsort(data, kind="stable")
            offsets = np.searchsorted(data[order], np.arange(int(data.max()) + 2))
            of_file = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(applied[order], pa.int32()))
            of_row = F.get(self._constant(of_file), F.col(self._tag))
            matches.append(F.array_contains(of_row, F.col(f"{prefix}tag")))
        if sizes.sum() <= BROADCAST_BYTES:
            listed = F.broadcast(listed)
        return rows.join(listed, reduce(and_, matches), "left_anti")


def columns_of(plan: ScanPlan, schema: Schema) -> dict[str, str | Column]:
    """The columns of a schema by name, as SQL over the rows of a plan; null where the plan does not read the column."""
    provided = {field.name for field in plan.schema.fields}
    return {
        f.name: quoted(f.name) if f.name in provided else f"CAST(NULL AS {sql_type(spark_type(f.field_type, f.name))})"
        for f in schema.fields
    }


def needed_fields(plan: ScanPlan) -> tuple[NestedField, ...]:
    """The columns of a plan, then the top-level columns of its predicate that are not among them."""
    tops = {field.field_id: field for field in plan.schema.fields}
    filtered = set(field_ids(plan.compiled.predicate))
    for field in plan.target.schema.fields:
        if any(inner.field_id in filtered for inner in walk(field)):
            tops.setdefault(field.field_id, field)
    return tuple(tops.values())


def delete_masks(files: PlannedFiles) -> tuple[Mask, Mask]:
    """Which files have position deletes or deletion vectors, and which have equality deletes."""
    data = np.repeat(np.arange(len(files)), files.matches.counts)
    positional = files.delete_kinds[files.matches.deletes] >= DeleteKind.POSITION_FILE
    masks = np.zeros((2, len(files)), dtype=np.bool_)
    masks[0, data[positional]] = True
    masks[1, data[~positional]] = True
    return masks[0], masks[1]


def matched_pairs(files: PlannedFiles, rows: Ints) -> tuple[Ints, Ints]:
    """Pairs of a data file (an index into ``rows``) and an equality delete that applies to it."""
    matches = files.matches.take(rows)
    data = np.repeat(np.arange(len(rows)), matches.counts)
    equality = files.delete_kinds[matches.deletes] < DeleteKind.POSITION_FILE
    return data[equality], matches.deletes[equality]


def equality_ids(files: PlannedFiles) -> list[int]:
    """The equality ids of all equality deletes that apply to a file of the plan."""
    applied = np.unique(files.matches.deletes)
    equality = applied[files.delete_kinds[applied] < DeleteKind.POSITION_FILE]
    return sorted({field_id for delete in equality.tolist() for field_id in _keys_of(files, delete)})


def key_field(plan: ScanPlan, field_id: int) -> NestedField:
    """A key column of equality deletes, from the newest schema that has it at the top level."""
    known = sorted(plan.target.metadata.schemas, key=lambda schema: -schema.schema_id)
    for schema in (plan.target.schema, *known):
        for field in schema.fields:
            if field.field_id == field_id:
                return field
    raise KeyError(field_id)


def _keys_of(files: PlannedFiles, delete: int) -> tuple[int, ...]:
    return tuple(files.deletes.table.column("equality_ids")[delete].as_py())


def select(rows: DataFrame, named: Mapping[str, str | Column]) -> DataFrame:
    """Select columns; as SQL text where possible, since building a ``Column`` takes calls to the JVM."""
    if all(isinstance(value, str) for value in named.values()):
        return select_texts(rows, tuple(f"{value} AS {quoted(name)}" for name, value in named.items()))
    columns = {name: F.expr(value) if isinstance(value, str) else value for name, value in named.items()}
    return rows.select(*(column.alias(name) for name, column in columns.items()))


# The row index of a row within its file. Spark's reader counts rows in an internal column, of which
# ``_metadata.row_index`` is a copy made row by row; reading it directly is cheaper. Its name is not documented, and a
# reader plugged in instead of Spark's may leave it null or fill it differently, which would restore deleted rows and
# lose others. It is used only in a session that read a small file of several row groups with the right row indexes.
#
# Fail-safe: any doubt (another version of Spark, an error, tasks that cannot read local files) means the documented
# column.

DOCUMENTED = "_metadata.row_index"
KNOWN_TO_COUNT = "4.1."
"""The version of Spark whose reader has ``ROW_INDEX``."""
_ROWS, _ROWS_PER_GROUP, _SKIPPED = 12, 3, 7
"""The probe file, and the number of its rows that a filter skips: two row groups and a part of the third."""

_proven: WeakKeyDictionary[SparkSession, bool] = WeakKeyDictionary()


def row_index_column(spark: SparkSession) -> str:
    """The column of the row index in a session."""
    if not spark.version.startswith(KNOWN_TO_COUNT):
        return DOCUMENTED
    if spark not in _proven:
        path = Path(process_folder()) / "numbered.parquet"
        field = pa.field("n", pa.int64(), metadata={"PARQUET:field_id": "1"})
        pq.write_table(pa.table([pa.array(range(_ROWS))], pa.schema([field])), path, row_group_size=_ROWS_PER_GROUP)
        requested = StructType([StructField("n", LongType(), True, {FIELD_ID: 1}), StructField(ROW_INDEX, LongType())])
        log = pa.array([str(path)]), np.array([path.stat().st_size]), np.zeros(1, dtype=np.int64)
        expected = sorted((n, n) for n in (*range(_ROWS), *range(_SKIPPED, _ROWS)))
        try:
            whole = read_logged(spark, requested, *log, may_miss=True)
            found = whole.unionAll(whole.where(f"n >= {_SKIPPED}")).collect()
            _proven[spark] = sorted(map(tuple, found)) == expected
        except Exception:
            _proven[spark] = False
    return ROW_INDEX if _proven[spark] else DOCUMENTED
