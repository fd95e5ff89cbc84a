"""Planned files as the JSON of a response: columns of text, joined by Arrow; no Python object per file.

Rule: a page is a range of the files of a plan, with the delete files that apply to them. References index the delete
files of the same page. Every column becomes a column of JSON text, one Arrow kernel joins them, and the bytes of the
joined column are the JSON array. Distinct residuals and distinct partition values are formatted once each. Pages of at
most ``FEW_FILES`` files have the same bytes, written file by file: the kernels of all columns take longer for them.

===================  =================================================================================
value                JSON (as Iceberg Java reads and writes it)
===================  =================================================================================
partition            an array in the order of the spec's fields; void fields are null
date, day            ``"2024-01-18"``; timestamps ISO, with ``+00:00`` for timestamptz
decimal, uuid        text; decimals keep their scale
float, double        always with a point or exponent
fixed, binary        hexadecimal, and so are bounds: ``{"keys": [ids], "values": ["HEX", …]}``
===================  =================================================================================

PyIceberg 0.12 cannot parse null partition values. It gets an empty partition for such files: it uses partition values
only for identity fields whose column the file lacks, and fails there, so it never reads a wrong value.

Fail-safe: a partition value that JSON cannot express (NaN, a year beyond 9999) is an error for other clients, never
null: engines read identity columns from it. ``policy`` leaves tables with such types to their clients.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.transforms import DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import DateType, DoubleType, FloatType, IntegerType, LongType, PrimitiveType, StringType

from floeplan.errors import UnsupportedError
from floeplan.metadata.manifests.entries import Content, EntriesTable, partition_column
from floeplan.partition.fields import BoundField
from floeplan.partition.transforms import from_physical
from floeplan.partition.union import UnionPartitionType
from floeplan.predicate.literals import value_json
from floeplan.scan.model import PlannedFiles
from floeplan.vectors import Bytes, Ints, integers, offsets_of, valid_mask

_DATE = DateType()
_TEXT = pa.large_string()
_CONTENTS = ("data", "position-deletes", "equality-deletes")
_CONTENT_TEXTS = pa.array(_CONTENTS, _TEXT)
_NULL = pa.scalar(None, _TEXT)
_EMPTY = pa.scalar("", _TEXT)
_HEX = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), dtype=np.uint16)
_COUNTS = {
    "column-sizes": "column_size",
    "value-counts": "value_count",
    "null-value-counts": "null_count",
    "nan-value-counts": "nan_count",
}
_BOUNDS = {"lower-bounds": "lower", "upper-bounds": "upper"}
_NUMBERS = {
    "sort-order-id": "sort_order_id",
    "first-row-id": "first_row_id",
    "content-offset": "content_offset",
    "content-size-in-bytes": "content_size_in_bytes",
}
"""Numbers that are left out of files without them."""
_COLUMNS = (
    "spec_id",
    "content",
    "file_path",
    "file_format",
    "file_size_in_bytes",
    "record_count",
    *_NUMBERS.values(),
    "sequence_number",
    "key_metadata",
    "equality_ids",
    "referenced_data_file",
)
_FEW_MEMBERS = {
    "file-size-in-bytes": "file_size_in_bytes",
    "record-count": "record_count",
    **_NUMBERS,
    "data-sequence-number": "sequence_number",
    "key-metadata": "key_metadata",
    "equality-ids": "equality_ids",
    "referenced-data-file": "referenced_data_file",
    "split-offsets": "split_offsets",
}
FEW_FILES = 128
"""Files that are written one by one."""
_FIXED_BYTES, _FIELD_BYTES, _REFERENCE_BYTES, _STATS_BYTES = 230, 12, 4, 160
"""Estimated bytes of a file without its path, of a partition value, a reference, and the statistics of a column."""

Texts: TypeAlias = pa.Array
"""A column of JSON text."""
Json: TypeAlias = Any
_json_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_json_lines = json.JSONEncoder(ensure_ascii=False, separators=("\n", ":")).encode
_FEW_TEXTS: Mapping[str, Callable[[Any], str]] = {
    "key_metadata": lambda value: f'"{value.hex().upper()}"',
    "referenced_data_file": _json_text,
    **dict.fromkeys(("equality_ids", "split_offsets"), lambda value: f"[{','.join(map(str, value))}]"),
}
"""Values that are not numbers."""


@dataclass(frozen=True, slots=True)
class PlanFiles:
    """The files of a plan and everything a page writes of them.

    Attributes:
        files: The planned files.
        details: More columns of the same files: ``split_offsets``, and the statistics of ``stats``.
        residuals: The JSON text of each distinct residual of ``files``.
        stats: Field ids whose statistics are sent.
        union: The partition fields of all specs.
        columns: Field ids of the table's current schema: clients know the types of partition values by it.
    """

    files: PlannedFiles
    details: EntriesTable
    residuals: tuple[str, ...]
    stats: tuple[int, ...]
    union: UnionPartitionType
    columns: frozenset[int]

    def __len__(self) -> int:
        return len(self.files)

    def sizes(self) -> Ints:
        """The estimated bytes of each file in a page."""
        paths = np.diff(_bytes_of(self.files.entries.path)[0])
        residuals = np.array([len(text) for text in self.residuals] or [0])[self.files.residual_of]
        return paths + residuals.astype(np.int64) + _REFERENCE_BYTES * self.files.matches.counts + self._fixed_bytes

    def longest(self) -> int:
        """At least the sum of ``sizes``, by lengths alone: most plans are a single page."""
        each = self._fixed_bytes + max(map(len, self.residuals), default=0)
        paths = len(_bytes_of(self.files.entries.path)[1])
        return paths + _REFERENCE_BYTES * len(self.files.matches.deletes) + each * len(self)

    @property
    def _fixed_bytes(self) -> int:
        return _FIXED_BYTES + _FIELD_BYTES * len(self.union.fields) + _STATS_BYTES * len(self.stats)

    def page_starts(self, page_bytes: int, first_bytes: int | None = None) -> list[int]:
        """The first file of each page of about this many bytes, and the number of files at the end.

        If there are several pages, the first one has about ``first_bytes``.
        """
        if self.longest() < page_bytes:
            return [0, len(self)]
        ends = np.cumsum(self.sizes())
        shorter = page_bytes - min(first_bytes or page_bytes, page_bytes) if ends[-1] >= page_bytes else 0
        breaks = np.flatnonzero(np.diff((ends + shorter) // page_bytes)) + 1
        return [0, *breaks.tolist(), len(self)]

    def page(self, start: int, end: int, *, pyiceberg: bool) -> tuple[bytes, bytes]:
        """The JSON arrays ``file-scan-tasks`` and ``delete-files`` of a range of files.

        Args:
            start: The first file.
            end: One past the last file.
            pyiceberg: Whether the client is PyIceberg.
        """
        count = end - start
        if not count:
            return b"[]", b"[]"
        entries = EntriesTable(self.files.entries.table.slice(start, count), self.files.entries.partition_types)
        details = EntriesTable(self.details.table.slice(start, count), {})
        offsets = self.files.matches.offsets[start : end + 1]
        deletes = self.files.matches.deletes[offsets[0] : offsets[-1]]
        used, references = np.unique(deletes, return_inverse=True) if len(deletes) else (deletes, deletes)
        if max(count, len(used)) <= FEW_FILES and not self.stats:
            of_files = (references[a:b].tolist() for a, b in pairwise((offsets - offsets[0]).tolist()))
            residuals = (self.residuals[i] for i in self.files.residual_of[start:end].tolist())
            tasks = map(_task, self._few(entries, details, pyiceberg), of_files, residuals)
            written = self._few(self.files.deletes.take(used), None, pyiceberg) if len(used) else []
            return f"[{','.join(tasks)}]".encode(), f"[{','.join(written)}]".encode()
        pieces = [
            '{"data-file":{',
            *self._content(entries, pyiceberg),
            _listed("split-offsets", details.array("split_offsets")),
            *(_stats_texts(details, self.stats) if self.stats else ()),
            "}",
            *([_references(references, offsets - offsets[0])] if len(used) else ()),
            ',"residual-filter":',
            pa.array(self.residuals, _TEXT).take(pa.array(self.files.residual_of[start:end])),
            "},",
        ]
        if not len(used):
            return _array_bytes(pieces, count), b"[]"
        content = self._content(self.files.deletes.take(used), pyiceberg)
        return _array_bytes(pieces, count), _array_bytes(["{", *content, "},"], len(used))

    def _content(self, entries: EntriesTable, pyiceberg: bool) -> list[Texts | str]:
        """The keys that data files and delete files share, and those of delete files."""
        pieces: list[Texts | str] = [
            '"spec-id":',
            _numbers(entries.array("spec_id")),
            ',"content":"',
            _CONTENT_TEXTS.take(entries.array("content")),
            '","file-path":',
            _strings(entries.path),
            ',"file-format":"',
            pc.utf8_lower(entries.array("file_format")),
            '","partition":',
            self._partitions(entries, pyiceberg),
            ',"file-size-in-bytes":',
            _numbers(entries.array("file_size_in_bytes")),
            ',"record-count":',
            _numbers(entries.array("record_count")),
        ]
        for key, name in _NUMBERS.items():
            pieces += _optional(key, entries, name, _numbers)
        if len(entries) and "first_row_id" in entries and entries.array("first_row_id").null_count < len(entries):
            # Row lineage: readers from the release after Iceberg 1.12 take it from here.
            pieces += [',"data-sequence-number":', _numbers(entries.array("sequence_number"))]
        pieces += _optional("key-metadata", entries, "key_metadata", _hex)
        if "equality_ids" in entries and (entries.content == Content.EQUALITY_DELETES).any():
            pieces.append(_listed("equality-ids", entries.array("equality_ids")))
        return pieces + _optional("referenced-data-file", entries, "referenced_data_file", _strings)

    def _few(self, entries: EntriesTable, details: EntriesTable | None, pyiceberg: bool) -> list[str]:
        """As ``_content``, with the split offsets, of few files: a list of JSON texts."""
        found = {name: entries.array(name) for name in _COLUMNS if name in entries}
        if details is not None:
            found["split_offsets"] = details.array("split_offsets")
        columns = {name: _values(array) for name, array in found.items() if array.null_count < len(array)}
        if Content.EQUALITY_DELETES not in columns["content"]:
            columns.pop("equality_ids", None)
        if "first_row_id" not in columns:
            del columns["sequence_number"]
        specs = columns["spec_id"]
        partitions = {spec: self._few_partitions(entries, spec, pyiceberg) for spec in set(specs)}
        members = [
            [f'"spec-id":{value}' for value in specs],
            [f',"content":"{_CONTENTS[value]}"' for value in columns["content"]],
            [f',"file-path":{text}' for text in _json_texts(columns["file_path"])],
            [f',"file-format":"{value.lower()}"' for value in columns["file_format"]],
            [f',"partition":{partitions[spec][at]}' for at, spec in enumerate(specs)],
        ]
        for key, name in _FEW_MEMBERS.items():
            if name in columns:
                shown = _FEW_TEXTS.get(name, str)
                members.append(["" if value is None else f',"{key}":{shown(value)}' for value in columns[name]])
        return [f"{{{''.join(file)}}}" for file in zip(*members, strict=True)]

    def _few_partitions(self, entries: EntriesTable, spec_id: int, pyiceberg: bool) -> list[str]:
        """The partition array of each file, for those of this spec, as JSON."""
        fields: list[list[str]] = []
        for field in self.union.spec(spec_id).fields:
            if not self._has_value(entries, field):
                fields.append(["null"] * len(entries))
                continue
            values, type_ = _values(entries.array(partition_column(field.column.field_id))), _type(entries, field)
            texts = _few_texts(type_, values)
            if not pyiceberg and texts.count("null") > values.count(None):
                pairs = zip(values, texts, strict=True)
                raise _unreadable(field, type_, next(v for v, text in pairs if text == "null" and v is not None))
            fields.append(texts)
        tuples = zip(*fields, strict=True) if fields else [()] * len(entries)
        return ["[]" if pyiceberg and "null" in texts else f"[{','.join(texts)}]" for texts in tuples]

    def _partitions(self, entries: EntriesTable, pyiceberg: bool) -> Texts:
        """The partition array of each file, in the order of the fields of its spec."""
        spec_id, made = entries.spec_id, None
        for spec in np.unique(spec_id).tolist():
            fields = [self._partition_value(entries, field, pyiceberg) for field in self.union.spec(spec).fields]
            if not pyiceberg:
                fields = [field.fill_null("null") for field in fields]
            joined = [part for field in fields for part in (field, ",")][:-1]
            # A null among the values makes the whole array null.
            texts = _join(["[", *joined, "]"], len(entries)).fill_null("[]")
            made = texts if made is None else pc.if_else(pa.array(spec_id == spec), texts, made)
        return pa.array([], _TEXT) if made is None else made

    def _partition_value(self, entries: EntriesTable, field: BoundField, pyiceberg: bool) -> Texts:
        """The JSON of one field of the partition tuple; null where the value is null, or has no JSON for PyIceberg."""
        if not self._has_value(entries, field):
            return pa.nulls(len(entries), _TEXT)
        values, type_ = entries.array(partition_column(field.column.field_id)), _type(entries, field)
        if pa.types.is_null(values.type):
            return values.cast(_TEXT)
        match type_:
            case IntegerType() | LongType():
                return _numbers(values)
            case StringType():
                return _strings(values)
        encoded = values.dictionary_encode()
        shown = [_shown(type_, value) for value in encoded.dictionary.to_pylist()]
        if None in shown and not pyiceberg:
            raise _unreadable(field, type_, encoded.dictionary[shown.index(None)].as_py())
        distinct = [None if value is None else _json_text(value) for value in shown]
        return pa.array(distinct, _TEXT).take(encoded.indices)

    def _has_value(self, entries: EntriesTable, field: BoundField) -> bool:
        """Whether clients read values of a partition field."""
        # The type of such a field is the type of its source: without the source, clients know no type for it.
        typeless = isinstance(field.transform, IdentityTransform | TruncateTransform)
        known = not typeless or field.source_id in self.columns
        return known and not field.is_void and partition_column(field.column.field_id) in entries


def _type(entries: EntriesTable, field: BoundField) -> PrimitiveType:
    """The type that partition values are written as."""
    return _DATE if isinstance(field.transform, DayTransform) else entries.partition_types[field.column.field_id]


def _unreadable(field: BoundField, type_: PrimitiveType, value: object) -> UnsupportedError:
    shown = value_json(type_, from_physical(type_, value))
    return UnsupportedError(
        f"partition field {field.column} has the value {shown}, which a REST client cannot read: "
        "use scan-planning-mode=client for this table",
        context={"partition_field": str(field.column)},
    )


def _values(array: pa.Array) -> list[Any]:
    """As ``to_pylist``, which makes an Arrow scalar of every value first."""
    listed: list[Any]
    if pa.types.is_integer(array.type) and not array.null_count:
        listed = integers(array).tolist()
        return listed
    if pa.types.is_large_list(array.type) and not array.values.null_count:
        ends = np.frombuffer(array.buffers()[1], dtype=np.int64)[array.offset : array.offset + len(array) + 1]
        items, valid = integers(array.values), valid_mask(array).tolist()
        rows = zip(pairwise(ends.tolist()), valid, strict=True)
        return [items[start:end].tolist() if is_valid else None for (start, end), is_valid in rows]
    listed = array.to_pylist()
    return listed


def _json_texts(values: list[str]) -> list[str]:
    """Strings as JSON, in one call; a line break within a string is escaped."""
    return _json_lines(values)[1:-1].split("\n")


def _task(file: str, deletes: list[int], residual: str) -> str:
    """A scan task of JSON texts."""
    references = f',"delete-file-references":[{",".join(map(str, deletes))}]' if deletes else ""
    return f'{{"data-file":{file}{references},"residual-filter":{residual}}}'


def _few_texts(type_: PrimitiveType, values: list[Any]) -> list[str]:
    """Partition values as JSON, ``null`` for what it cannot express; equal values once, but not signed zeros."""
    if isinstance(type_, FloatType | DoubleType):
        return [_json_text(None if value is None else _shown(type_, value)) for value in values]
    plain = isinstance(type_, IntegerType | LongType | StringType)
    shown = {value: value if plain or value is None else _shown(type_, value) for value in set(values)}
    texts = {value: _json_text(found) for value, found in shown.items()}
    return [texts[value] for value in values]


def _shown(type_: PrimitiveType, value: object) -> Json:
    """A partition value as JSON; ``None`` where clients could not parse it."""
    canonical = from_physical(type_, value)
    shown = value_json(type_, canonical)
    # NaN becomes text and a date that Python cannot format a number: clients parse neither.
    return shown if isinstance(shown, float if isinstance(canonical, float) else bool | str) else None


def _join(pieces: Sequence[Texts | str], rows: int) -> Texts:
    """Join columns and constants row by row; a null makes the row null."""
    if not any(isinstance(piece, pa.Array) for piece in pieces):
        return pa.array(["".join(map(str, pieces))], _TEXT).take(pa.array(np.zeros(rows, dtype=np.int64)))
    columns = [pa.scalar(piece, _TEXT) if isinstance(piece, str) else piece for piece in pieces]
    return pc.binary_join_element_wise(*columns, _EMPTY)


def _array_bytes(pieces: Sequence[Texts | str], rows: int) -> bytes:
    """A JSON array of the joined rows, each of which ends with a comma."""
    _, data = _bytes_of(_join(pieces, rows))
    return b"[%b]" % data[:-1].tobytes()


def _numbers(values: pa.Array) -> Texts:
    return values.cast(_TEXT)


def _strings(values: pa.Array) -> Texts:
    """JSON strings; values that need escapes are rare and escaped one by one."""
    _, raw = _bytes_of(values)
    if ((raw < 0x20) | (raw == ord('"')) | (raw == ord("\\"))).any():
        encoded = values.dictionary_encode()
        quoted = [_json_text(value) for value in encoded.dictionary.to_pylist()]
        return pa.array(quoted, _TEXT).take(encoded.indices)
    return _join(['"', values, '"'], len(values))


def _hex(values: pa.Array) -> Texts:
    """JSON strings of bytes in hexadecimal."""
    ends, raw = _bytes_of(values)
    buffers = [None, pa.py_buffer(2 * ends), pa.py_buffer(_HEX[raw])]
    quoted = _join(['"', pa.Array.from_buffers(_TEXT, len(values), buffers), '"'], len(values))
    return pc.if_else(values.is_valid(), quoted, _NULL) if values.null_count else quoted


def _optional(key: str, entries: EntriesTable, name: str, texts: Callable[[pa.Array], Texts]) -> list[Texts | str]:
    """A key that is left out of files without a value."""
    if name not in entries or entries.array(name).null_count == len(entries):
        return []
    written = _join([f',"{key}":', texts(entries.array(name))], len(entries))
    return [written.fill_null("") if written.null_count else written]


def _listed(key: str, values: pa.Array) -> Texts:
    """A key with a list of numbers, left out where the list is null."""
    counts = np.asarray(pc.list_value_length(values).fill_null(0))
    joined = _joined_lists(_numbers(values.flatten()), offsets_of(counts))
    written = _join([f',"{key}":[', joined, "]"], len(values))
    return pc.if_else(values.is_valid(), written, _EMPTY) if values.null_count else written


def _joined_lists(texts: Texts, offsets: Ints) -> Texts:
    """The texts between consecutive offsets, joined by commas.

    Items of one list are contiguous, so a list is a slice of the joined items; all but its first begin with a comma.
    """
    first = np.zeros(len(texts) + 1, dtype=np.bool_)
    first[offsets[:-1]] = True
    commas = pc.if_else(pa.array(first[:-1]), _EMPTY, pa.scalar(",", _TEXT))
    items = _join([commas, texts], len(texts))
    ends, data = _bytes_of(items)
    return pa.Array.from_buffers(_TEXT, len(offsets) - 1, [None, pa.py_buffer(ends[offsets]), pa.py_buffer(data)])


def _bytes_of(values: pa.Array) -> tuple[Ints, Bytes]:
    """Where each value of a text or binary column begins and the last one ends, and the bytes."""
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[values.offset : values.offset + len(values) + 1]
    raw = np.zeros(0, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8)
    return ends - ends[0], raw[ends[0] : ends[-1]]


def _references(references: Ints, offsets: Ints) -> Texts:
    """The key ``delete-file-references``, left out of files without deletes."""
    joined = _joined_lists(_numbers(pa.array(references.astype(np.int64))), offsets)
    written = _join([',"delete-file-references":[', joined, "]"], len(offsets) - 1)
    return pc.if_else(pa.array(np.diff(offsets) > 0), written, _EMPTY)


def _stats_texts(details: EntriesTable, stats: Sequence[int]) -> list[Texts]:
    """The maps of statistics: ``{"keys": […], "values": […]}``; a file has no key for a column without a value."""
    made = []
    for key, prefix in {**_COUNTS, **_BOUNDS}.items():
        columns = {i: details.array(f"{prefix}.{i}") for i in stats if f"{prefix}.{i}" in details}
        if not columns:
            continue
        # The cells that have a value, file by file: the keys of a file are contiguous, and so are its values.
        valid = np.stack([valid_mask(column) for column in columns.values()], axis=1)
        offsets = offsets_of(valid.sum(axis=1))
        rows, at = np.nonzero(valid)
        cells = pa.concat_arrays(list(columns.values())).take(pa.array(at * len(details) + rows))
        keys = _joined_lists(_numbers(pa.array(np.array(list(columns))[at])), offsets)
        values = _joined_lists(_hex(cells) if key in _BOUNDS else _numbers(cells), offsets)
        made.append(_join([f',"{key}":{{"keys":[', keys, '],"values":[', values, "]}"], len(details)))
    return made
