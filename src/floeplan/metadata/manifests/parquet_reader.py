"""Reads manifests that are Parquet files, as Iceberg 1.12.0 writes them for tables of format 4.

Such a manifest has the entries of format 3. A spec without fields has no ``partition`` column, because Parquet has no
empty groups. Columns are found by field id, and they are those that the Avro decoder makes for the same ``Fields``.

Rule: only the requested columns are read, and the manifests of one schema and spec are decoded together, so a manifest
costs a few Python calls and an entry none.
Fail-safe: a file that Arrow cannot read, or whose footer counts more than its bytes can hold, is an error naming it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from floeplan import arrow_compute as pc
from floeplan.errors import CorruptMetadataError
from floeplan.format4 import resolve_all
from floeplan.metadata.avro.decoder import RawColumn
from floeplan.metadata.avro.program import Fields, Items, Keyed, Scalar
from floeplan.metadata.manifests.assemble import DecodedManifests
from floeplan.metadata.manifests.entries import concat_columns
from floeplan.metadata.manifests.values import fixed_width
from floeplan.predicate.stats import POOL
from floeplan.text import one_line
from floeplan.vectors import Ints, one_array, valid_mask

MAGIC = b"PAR1"

MOST_BYTES = 4 * 1024**3
"""The most bytes that a manifest may say it has uncompressed; the largest ones have a few tens of MB."""

_STATUS = 0
"""Field id of the status."""

_PATHS = frozenset({"file_path", "referenced_data_file"})
UNREADABLE = (pa.ArrowException, OSError, ValueError, TypeError, AttributeError, LookupError, OverflowError)
"""What Arrow raises for damaged files, and what becomes of columns that are not of the expected shape."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Manifests of one spec and one schema.

    Attributes:
        path: The first of them.
        want: What to decode.
        schema: Their schema.
        found: The names of the requested columns that they have, each with the names that lead to it in the schema.
        tables: Their entries.
        positions: Which of all the manifests these are.
    """

    path: str
    want: Fields
    schema: pa.Schema
    found: Mapping[str, tuple[str, ...]]
    tables: list[pa.Table] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)


class ParquetManifests:
    """Collects manifests and decodes those of one schema and spec together; ``dropped`` is a status to leave out."""

    def __init__(self, table_location: str, dropped: int | None = None) -> None:
        self._table_location = table_location
        self._dropped = dropped
        self._groups: dict[int, list[_Group]] = {}

    def read(self, data: bytes, path: str, position: int, spec_id: int, want: Fields) -> Set[str]:
        """Read the requested columns of a manifest; returns the names of those that it has."""
        import pyarrow.parquet as pq  # late: only tables of format 4 need it

        try:
            file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
            footer, schema = file.metadata, file.schema_arrow
            claimed = sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))
            if footer.num_rows > len(data) or claimed > MOST_BYTES:
                raise _damaged(path, "its footer counts more entries than its bytes can hold")
            groups = self._groups.setdefault(spec_id, [])
            group = next((one for one in groups if one.schema.equals(schema, check_metadata=True)), None)
            if group is None:
                group = _Group(path, want, schema, dict(_located(schema, want)))
                groups.append(group)
            table = file.read([".".join(names) for names in group.found.values()], use_threads=False)
        except UNREADABLE as error:
            raise _damaged(path, one_line(error)) from error
        group.tables.append(table)
        group.positions.append(position)
        return group.found.keys()

    def finish(self) -> Iterator[DecodedManifests]:
        """The columns of each group."""
        for group in (one for groups in self._groups.values() for one in groups):
            try:
                yield self._decoded(group)
            except UNREADABLE as error:
                raise _damaged(group.path, one_line(error)) from error

    def _decoded(self, group: _Group) -> DecodedManifests:
        table = pa.concat_tables(group.tables)
        counts = np.array([len(one) for one in group.tables], dtype=np.int64)
        if self._dropped is not None:
            # A null status stays, to be reported as invalid.
            keep = pc.fill_null(pc.not_equal(_columns(table)[_STATUS], self._dropped), True)
            kept = np.concatenate([[0], np.cumsum(np.asarray(keep), dtype=np.int64)])
            ends = np.cumsum(counts)
            table, counts = table.filter(keep), kept[ends] - kept[ends - counts]
        columns = {}
        for name, values in _decode(_columns(table), group.want):
            columns[name] = raw_column(resolve_all(self._table_location, values) if name in _PATHS else values)
        return DecodedManifests(columns, group.positions, counts.tolist())


def concat_decoded(parts: Iterable[DecodedManifests]) -> DecodedManifests:
    """The columns of all manifests; a column that one part does not have is null there."""
    filled = [part for part in parts if part.positions]
    if len(filled) < 2:
        return filled[0] if filled else DecodedManifests({}, [], [])
    columns = {}
    for name in dict.fromkeys(name for part in filled for name in part.columns):
        pieces = []
        for part in filled:
            # Items of lists and maps have their own length: none where no manifest has the list.
            missing = 0 if name.endswith(("[]", ".key", ".value")) else sum(part.counts)
            pieces.append(part.columns[name].to_arrow() if name in part.columns else pa.nulls(missing))
        stored = next(part.columns[name].stored_type for part in filled if name in part.columns)
        try:
            columns[name] = RawColumn.of(concat_columns(pieces), stored)
        except pa.ArrowInvalid as error:
            raise CorruptMetadataError(f"manifests of the table store {name!r} with different types") from error
    positions, counts = ([n for part in filled for n in getattr(part, of)] for of in ("positions", "counts"))
    return DecodedManifests(columns, positions, counts)


def _damaged(path: str, why: str) -> CorruptMetadataError:
    return CorruptMetadataError(f"{path} is a damaged Parquet manifest: {why}", context={"file": path})


def _located(
    fields: Iterable[pa.Field], want: Fields, within: tuple[str, ...] = ()
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The columns of ``want`` that a schema has, each with the names that lead to it."""
    known = {field_id_of(one): one for one in fields}
    for field_id, inner in want.by_id:
        if field_id not in known:
            continue
        names, type_ = (*within, known[field_id].name), known[field_id].type
        match inner:
            case Fields():
                yield from _located(type_, inner, names)
            case Items(name, Fields() as pair):
                yield name, names
                yield from ((part, names) for part, _ in _located((type_.key_field, type_.item_field), pair))
            case Scalar(name) | Items(name):
                yield name, names
            case Keyed(prefix):
                yield prefix, names


def field_id_of(one: pa.Field) -> int:
    """The field id of a column; -1 if it has none."""
    return int((one.metadata or {}).get(b"PARQUET:field_id", -1))


def _columns(table: pa.Table) -> dict[int, pa.Array]:
    """The columns of a table by field id."""
    return {field_id_of(one): one_array(table.column(at)) for at, one in enumerate(table.schema)}


def _decode(fields: Mapping[int, pa.Array], want: Fields) -> Iterator[tuple[str, pa.Array]]:
    """The columns of ``want``, named as the Avro decoder names them."""
    for field_id, inner in want.by_id:
        array = fields.get(field_id)
        if array is None:
            continue
        match inner:
            case Scalar(name):
                yield name, array
            case Fields():
                nested = {field_id_of(one): array.field(at) for at, one in enumerate(array.type)}
                yield from _decode(nested, inner)
            case Items(name, item):
                counts, parts = _items(array)
                yield name, pa.array(counts, mask=~valid_mask(array))
                if isinstance(item, Fields):
                    yield from _decode(parts, item)
                else:
                    yield item.name, next(iter(parts.values()))
            case Keyed(prefix, keys):
                yield from _by_key(array, prefix, keys)


def _items(array: pa.Array) -> tuple[Ints, dict[int, pa.Array]]:
    """The number of items of each row of a list or map, and the items, or keys and values, by field id."""
    offsets = np.asarray(array.offsets).astype(np.int64)
    first, end = int(offsets[0]), int(offsets[-1])
    if pa.types.is_map(array.type):
        parts = {field_id_of(array.type.key_field): array.keys, field_id_of(array.type.item_field): array.items}
    else:
        parts = {field_id_of(array.type.value_field): array.values}
    return np.diff(offsets), {key: items[first:end] for key, items in parts.items()}


def _by_key(array: pa.Array, prefix: str, keys: tuple[int, ...]) -> Iterator[tuple[str, pa.Array]]:
    """The values of a map for each of some keys; null where a row does not have the key."""
    counts, parts = _items(array)
    found, values = parts.values()
    numbers, row = np.asarray(found), np.repeat(np.arange(len(array)), counts)
    for key in keys:
        at = np.flatnonzero(numbers == key)
        index = np.full(len(array), -1, dtype=np.int64)
        index[row[at]] = at
        yield f"{prefix}{key}", values.take(pa.array(index, mask=index < 0))


def raw_column(array: pa.Array) -> RawColumn:
    """A column as the Avro decoder would give it: 64-bit numbers, or bytes; decimals are big-endian bytes."""
    stored, type_ = array.type, array.type
    if isinstance(type_, pa.BaseExtensionType):  # UUIDs
        array, type_ = array.storage, array.type.storage_type
    if pa.types.is_time32(type_) or (pa.types.is_timestamp(type_) and type_.unit in ("s", "ms")):
        array = _cast(array, pa.time64("us") if pa.types.is_time32(type_) else pa.timestamp("us"))
    if pa.types.is_decimal(type_):
        width = type_.byte_width
        data = np.frombuffer(array.buffers()[1] or b"", dtype=np.uint8)[: (array.offset + len(array)) * width]
        array = fixed_width(data.reshape(-1, width)[array.offset :, ::-1], valid_mask(array))
    elif pa.types.is_floating(type_):
        array = _cast(array, pa.float64())
    elif pa.types.is_date32(type_):
        array = _cast(array.view(pa.int32()), pa.int64())
    elif pa.types.is_integer(type_) or pa.types.is_boolean(type_) or pa.types.is_temporal(type_):
        array = _cast(array, pa.int64())
    else:
        array = _cast(array, pa.large_binary())
    return RawColumn.of(array, stored)


def _cast(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Not with Arrow's default allocator, whose fresh memory takes longer than the conversion."""
    return array if array.type == type_ else array.cast(type_, memory_pool=POOL)
