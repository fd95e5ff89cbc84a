"""Random histories of a table, written as real files, and the rows a reader must see.

A history is a chain of commits: files appended under any spec, files removed, position deletes of both granularities,
deletion vectors and equality deletes; between them the schema, the spec and the format version change. Data files are
Parquet by pyarrow, manifests and lists Avro by ``tests.support.tables.manifests``, the metadata JSON by hand: no writer
of the package is used. The expected rows are kept as canonical Python values.
"""

from __future__ import annotations

import math
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyiceberg import transforms as pt
from pyiceberg.conversions import to_bytes
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)
from pyroaring import BitMap64

from floeplan.scan.delete_files import encode_deletion_vector
from tests.support.oracles.datasets import to_arrow
from tests.support.oracles.history_files import (
    File,
    History,
    HistoryFiles,
    Manifest,
    PartField,
    Row,
    Snapshot,
    Spec,
    code,
)
from tests.support.oracles.statistics import Summary, weakened
from tests.support.oracles.values import is_float, unscaled_of, values, written
from tests.support.tables.other_formats import can_be_orc, write_rows

ROW_ID = 1
"""Field id of the column with the row number."""

TYPES: tuple[PrimitiveType, ...] = (
    BooleanType(),
    IntegerType(),
    LongType(),
    FloatType(),
    DoubleType(),
    DecimalType(4, 2),
    DecimalType(20, 2),
    DateType(),
    TimestampType(),
    TimestamptzType(),
    StringType(),
    BinaryType(),
    UUIDType(),
)
PROMOTED: dict[PrimitiveType, PrimitiveType] = {
    IntegerType(): LongType(),
    FloatType(): DoubleType(),
    DecimalType(4, 2): DecimalType(9, 2),
    DecimalType(9, 2): DecimalType(20, 2),
}
TRANSFORMS = (
    pt.IdentityTransform(),
    pt.BucketTransform(3),
    pt.TruncateTransform(2),
    pt.YearTransform(),
    pt.MonthTransform(),
    pt.DayTransform(),
    pt.HourTransform(),
    pt.VoidTransform(),
)
PATH_ID, POSITION_ID = 2147483546, 2147483545


@st.composite
def histories(draw: st.DrawFn, root: Path, max_steps: int = 5) -> History:
    """Any history, in a new folder."""
    builder = _Builder(root / uuid.uuid4().hex, draw)
    builder.commit([builder.append])
    if builder.version > 1 and draw(st.booleans()):
        builder.drop_partitioning()
        builder.commit([builder.delete_keys])
    for _ in range(draw(st.integers(1, max_steps))):
        for change in draw(st.lists(st.sampled_from(builder.changes()), max_size=2)):
            change()
        builder.commit(draw(st.lists(st.sampled_from(builder.parts()), min_size=1, max_size=2)))
    return builder.finish()


class _Builder(HistoryFiles):
    """The state of a table between two steps; every step draws its change."""

    def __init__(self, folder: Path, draw: st.DrawFn) -> None:
        folder.mkdir(parents=True)
        self.folder, self.draw = folder, draw
        self.version = draw(st.sampled_from((1, 2, 2, 3, 3)))
        types = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=4))
        self.columns = [NestedField(ROW_ID, "rid", LongType(), required=True)]
        self.columns += [NestedField(at + 2, f"c{at}", type_, required=False) for at, type_ in enumerate(types)]
        self.last_column = len(self.columns)
        self.schemas = [self._schema(0)]
        self.positional_ids = self.version == 1 and draw(st.booleans())
        self.specs: dict[int, Spec] = {}
        self.change_spec()
        self.manifests: list[Manifest] = []
        self.snapshots: list[Snapshot] = []
        self.listed: list[dict[str, Any]] = []
        self.sequence, self.next_row, self.pools = 0, 0, dict[int, list[Any]]()

    def changes(self) -> list[Any]:
        """Possible schema, spec and format changes before the next commit."""
        spec = [self.change_spec, self.change_spec, self.drop_partitioning]
        return [*spec, self.change_schema, self.change_schema, self.upgrade]

    def parts(self) -> list[Any]:
        """Possible parts of the next commit."""
        possible = [self.append, self.append, self.append, self.remove]
        if self.version > 1:
            possible += [self.delete_positions, self.delete_keys, self.replace_rows]
        if self.version > 2:
            possible += [self.delete_by_vector]
        return possible

    # schema, spec and format version

    def _schema(self, schema_id: int) -> Schema:
        return Schema(*self.columns, schema_id=schema_id)

    def upgrade(self) -> None:
        self.version = min(self.version + 1, 3)

    def change_spec(self) -> None:
        spec_id = max(self.specs, default=self.draw(st.integers(-1, 1))) + self.draw(st.integers(1, 3))
        kept = [f for f in (self.spec.fields if self.specs else ()) if self.draw(st.booleans())]
        if self.version == 1 and self.specs:
            kept = [f if f in kept else replace(f, transform=pt.VoidTransform()) for f in self.spec.fields]
        candidates = [
            (column.field_id, transform)
            for column in self.columns
            for transform in TRANSFORMS
            if transform.can_transform(column.field_type)
        ]
        added = self.draw(st.lists(st.sampled_from(candidates), max_size=2, unique_by=lambda c: (c[0], str(c[1]))))
        taken = {(f.source_id, str(f.transform)) for f in kept}
        for source_id, transform in added:
            if (source_id, str(transform)) not in taken:
                kept.append(PartField(self._part_id(source_id, transform, kept), source_id, transform))
        self.specs[spec_id] = Spec(spec_id, tuple(kept))

    def drop_partitioning(self) -> None:
        """As in format 1: the fields keep their positions and become void."""
        void, spec_id = pt.VoidTransform(), max(self.specs) + 1
        fields = self.spec.fields or (PartField(self._part_id(ROW_ID, void, []), ROW_ID, void),)
        self.specs[spec_id] = Spec(spec_id, tuple(replace(f, transform=void) for f in fields))

    def _part_id(self, source_id: int, transform: Any, kept: list[PartField]) -> int:
        """By position as in early tables, or the id the same field had before, or a new one; unique within a spec."""
        if self.positional_ids and self.version == 1:
            return 1000 + len(kept)
        before = [f for spec in self.specs.values() for f in spec.fields]
        same = [f.field_id for f in before if (f.source_id, str(f.transform)) == (source_id, str(transform))]
        free = [field_id for field_id in same if field_id not in {f.field_id for f in kept}]
        return free[-1] if free else 1 + max((f.field_id for f in [*before, *kept]), default=999)

    def change_schema(self) -> None:
        """Rename, drop, add (under an old name too, with a default in format 3) or promote a column."""
        sources = {f.source_id for f in self.spec.fields}
        others = range(1, len(self.columns))
        match self.draw(st.sampled_from(("rename", "drop", "add", "add", "promote"))):
            case "rename" if others:
                at = self.draw(st.sampled_from(others))
                self._change(at, name=self._free_name())
            case "drop" if droppable := [i for i in others if self.columns[i].field_id not in sources]:
                del self.columns[self.draw(st.sampled_from(droppable))]
            case "promote" if wider := [i for i in others if self.columns[i].field_type in PROMOTED]:
                at = self.draw(st.sampled_from(wider))
                self._change(at, field_type=PROMOTED[self.columns[at].field_type])
            case "add":
                self._add_column()
        self.schemas.append(self._schema(len(self.schemas)))

    def _change(self, at: int, **changes: Any) -> None:
        self.columns[at] = self.columns[at].model_copy(update=changes)

    def _free_name(self) -> str:
        taken = {column.name for column in self.columns}
        return self.draw(st.sampled_from([name for name in (f"c{i}" for i in range(8)) if name not in taken]))

    def _add_column(self) -> None:
        if len(self.columns) > 6:
            return
        self.last_column += 1
        type_ = self.draw(st.sampled_from(TYPES))
        default = None
        if self.version > 2 and isinstance(type_, IntegerType | LongType | StringType | BooleanType):
            default = self.draw(st.none() | values(type_))
        added = NestedField(self.last_column, self._free_name(), type_, required=False, initial_default=default)
        self.columns.append(added)

    # commits

    def append(self) -> None:
        """A few rows, one file per partition, under any spec whose source columns exist."""
        here = {column.field_id for column in self.columns}
        usable = [spec for spec in self.specs.values() if all(f.source_id in here for f in spec.fields)]
        spec = self.draw(st.sampled_from([*usable, self.spec]))
        parts: dict[tuple[Any, ...], tuple[tuple[Any, ...], list[Row]]] = {}
        for _ in range(self.draw(st.integers(1, 9))):
            row = {column.field_id: self._value(column) for column in self.columns}
            row |= {f.source_id: None for f in spec.fields if not self._labels(f, row)}
            partition = tuple(self._partition_value(f, row) for f in spec.fields)
            parts.setdefault(code(partition), (partition, []))[1].append(row)
        files = [self._data_file(spec, partition, rows) for partition, rows in parts.values()]
        self._add(0, spec.spec_id, files)

    def _value(self, column: NestedField) -> Any:
        if column.field_id == ROW_ID:
            self.next_row += 1
            return self.next_row
        type_ = column.field_type
        assert isinstance(type_, PrimitiveType)
        if column.field_id not in self.pools:
            always = [None, math.nan] if is_float(type_) else [None]
            self.pools[column.field_id] = always + self.draw(st.lists(values(type_), min_size=1, max_size=4))
        return self.draw(st.sampled_from(self.pools[column.field_id]))

    def _partition_value(self, part: PartField, row: Row) -> Any:
        labels = self._labels(part, row)
        return self.draw(st.sampled_from(labels)) if len(labels) > 1 else labels[0]

    def _labels(self, part: PartField, row: Row) -> list[Any]:
        """Partition values that writers may store, if a manifest can hold them."""
        if isinstance(part.transform, pt.VoidTransform) or row[part.source_id] is None:
            return [None]
        type_ = self._type(part.source_id)
        labels = written(part.transform, type_, row[part.source_id])
        if isinstance(part.transform, pt.TimeTransform):
            return [label for label in labels if -(2**31) <= label < 2**31]
        if isinstance(type_, DecimalType) and not isinstance(part.transform, pt.BucketTransform):
            return [label for label in labels if abs(unscaled_of(label, type_.scale)) < 10**type_.precision]
        return labels

    def _type(self, field_id: int) -> PrimitiveType:
        type_ = next(column.field_type for column in self.columns if column.field_id == field_id)
        assert isinstance(type_, PrimitiveType)
        return type_

    def _data_file(self, spec: Spec, partition: tuple[Any, ...], rows: list[Row]) -> File:
        """Columns of identity fields may be missing in the file, as in Hive tables."""
        identities = {
            f.source_id: value
            for f, value in zip(spec.fields, partition, strict=True)
            if isinstance(f.transform, pt.IdentityTransform) and f.source_id != ROW_ID
        }
        if not self.draw(st.integers(0, 2)):
            rows = [{i: value for i, value in row.items() if i not in identities} for row in rows]
        types = {i: self._type(i) for i in rows[0]}
        return File(
            path=self._write_file("data", rows, types),
            content=0,
            spec_id=spec.spec_id,
            partition=partition,
            sequence=self.sequence if self.version > 1 else 0,
            rows=tuple(rows),
            types=types,
            stats=self._stats(types, rows),
            constants=identities,
        )

    def _write_file(self, kind: str, rows: list[Row], types: dict[int, PrimitiveType]) -> str:
        names = {column.field_id: column.name for column in self.columns} | {PATH_ID: "file_path", POSITION_ID: "pos"}
        arrays = [to_arrow(type_, [row[i] for row in rows]) for i, type_ in types.items()]
        fields = [
            pa.field(names[i], array.type, metadata={b"PARQUET:field_id": str(i).encode()})
            for i, array in zip(types, arrays, strict=True)
        ]
        table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
        suffix = self.draw(st.sampled_from(("parquet", "parquet", "orc", "avro")))
        options: dict[str, Any] = {"group": self.draw(st.integers(1, 4))}
        if suffix == "parquet" or (suffix == "orc" and not can_be_orc(table)):
            suffix, options["write_page_index"] = "parquet", self.draw(st.booleans())
            options["write_statistics"] = bool(self.draw(st.integers(0, 4)))
        path = self.folder / f"{kind}-{uuid.uuid4().hex}.{suffix}"
        write_rows(table, path, **options)
        return path.as_uri()

    def _stats(self, types: dict[int, PrimitiveType], rows: list[Row]) -> dict[str, dict[int, Any]]:
        """Statistics by mode: all, counts, none, or weakened."""
        mode = self.draw(st.sampled_from(("full", "full", "counts", "none", "weak")))
        maps: dict[str, dict[int, Any]] = {name: {} for name in _STAT_MAPS}
        for i, type_ in types.items() if mode != "none" else ():
            summary = Summary.of([row[i] for row in rows])
            if mode == "weak":
                summary = self.draw(weakened(type_, summary))
            if mode == "counts":
                summary = replace(summary, lower=None, upper=None)
            counts = {"value_counts": summary.rows, "null_value_counts": summary.nulls}
            counts |= {"nan_value_counts": summary.nans} if is_float(type_) else {}
            for name, count in counts.items():
                maps[name] |= {i: count} if count >= 0 else {}
            for name, bound in (("lower_bounds", summary.lower), ("upper_bounds", summary.upper)):
                maps[name] |= {} if bound is None else {i: to_bytes(type_, bound)}
        return maps

    def _add(self, content: int, spec_id: int, files: list[File]) -> None:
        self.manifests.append(self.write_manifest(content, spec_id, [(1, file) for file in files]))

    def commit(self, parts: list[Any]) -> None:
        """One snapshot with everything its parts add and remove, under one sequence number."""
        self.sequence += 1
        for part in parts:
            part()
        self.write_snapshot()

    def remove(self) -> None:
        """Rewrite the manifest of a data file without the file."""
        there = [(m, f) for m in self.manifests if m.content == 0 for status, f in m.entries if status != 2]
        if not there:
            return
        manifest, gone = self.draw(st.sampled_from(there))
        entries = [(2 if f is gone else 0, f) for status, f in manifest.entries if status != 2]
        again = self.write_manifest(0, manifest.spec_id, entries)
        self.manifests = [again if m is manifest else m for m in self.manifests]

    def delete_positions(self) -> None:
        """Position deletes of one file (with ``referenced_data_file``), or of files of one partition."""
        targets = self._targets()
        if not targets:
            return
        one = self.draw(st.sampled_from(targets))
        named = self.draw(st.booleans())
        files = [one] if named else [f for f in targets if _same_partition(f, one)]
        positions = [pair for f in files for pair in self._some_positions(f)]
        rows = [{PATH_ID: path, POSITION_ID: at} for path, at in positions]
        types: dict[int, PrimitiveType] = {PATH_ID: StringType(), POSITION_ID: LongType()}
        stats = self._stats(types, rows)
        paths = sorted(path for path, _ in positions)
        for name, path in (("lower_bounds", paths[0]), ("upper_bounds", paths[-1])):
            stats[name].pop(PATH_ID, None)
            stats[name] |= {PATH_ID: path.encode()} if named or self.draw(st.booleans()) else {}
        written_at = self._write_file("positions", rows, types)
        self._add_delete(written_at, one, rows, types, stats, positions=tuple(positions))

    def _targets(self) -> list[File]:
        """Data files to delete from; half of the time one of the latest."""
        files = [f for m in self.manifests if m.content == 0 for status, f in m.entries if status != 2]
        return [f for f in files if f.sequence == self.sequence] or files if self.draw(st.booleans()) else files

    def _some_positions(self, file: File) -> list[tuple[str, int]]:
        most = len(file.rows) - 1
        return [(file.path, at) for at in self.draw(st.lists(st.integers(0, most), min_size=1, max_size=3))]

    def delete_by_vector(self) -> None:
        """A deletion vector for a file that has none."""
        have = {f.extra["referenced_data_file"] for m in self.manifests for _, f in m.entries if f.is_vector}
        targets = [f for f in self._targets() if f.path not in have]
        if not targets:
            return
        one = self.draw(st.sampled_from(targets))
        positions = sorted(set(self._some_positions(one)))
        blob = encode_deletion_vector(BitMap64([at for _, at in positions]))
        path = self.folder / f"vector-{uuid.uuid4().hex}.puffin"
        path.write_bytes(b"PFA1" + blob + b"PFA1")
        extra = {
            "file_format": "PUFFIN",
            "referenced_data_file": one.path,
            "content_offset": 4,
            "content_size_in_bytes": len(blob),
            "record_count": len(positions),
        }
        self._add_delete(path.as_uri(), one, [], {}, {}, positions=tuple(positions), extra=extra)

    def replace_rows(self) -> None:
        """Add and delete rows in one commit: equality deletes do not apply to the new rows, position deletes do."""
        self.append()
        self.draw(st.sampled_from((self.delete_keys, self.delete_positions)))()

    def delete_keys(self) -> None:
        """Equality deletes in one partition, or global if the spec is unpartitioned."""
        targets = self._targets()
        if not targets:
            return
        one = self.draw(st.sampled_from(targets))
        everywhere = [spec for spec in self.specs.values() if spec.unpartitioned]
        everywhere.sort(key=lambda spec: (not spec.fields, -spec.spec_id))
        if everywhere and self.draw(st.integers(0, 2)):
            spec = everywhere[0] if self.draw(st.booleans()) else self.draw(st.sampled_from(everywhere))
            one = replace(one, spec_id=spec.spec_id, partition=(None,) * len(spec.fields))
        columns = self.draw(st.lists(st.sampled_from(self.columns), min_size=1, max_size=2, unique_by=lambda c: c.name))
        types = {column.field_id: self._type(column.field_id) for column in columns}
        rows = []
        for _ in range(self.draw(st.integers(1, 3))):
            near = self.draw(st.booleans())
            source = self.draw(st.sampled_from(one.rows if near else [row for f in targets for row in f.rows]))
            rows.append({i: source.get(i) for i in types})
        path = self._write_file("keys", rows, types)
        stats = self._stats(types, rows)
        self._add_delete(path, one, rows, types, stats, keys=tuple(types), extra={"equality_ids": list(types)})

    def _add_delete(
        self,
        path: str,
        like: File,
        rows: list[Row],
        types: dict[int, PrimitiveType],
        stats: dict[str, dict[int, Any]],
        **what: Any,
    ) -> None:
        """A delete file in the partition of a data file."""
        delete = File(path, 1, like.spec_id, like.partition, self.sequence, tuple(rows), types, stats, **what)
        self._add(1, like.spec_id, [delete])


_STAT_MAPS = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")


def _same_partition(one: File, other: File) -> bool:
    return (one.spec_id, code(one.partition)) == (other.spec_id, code(other.partition))
