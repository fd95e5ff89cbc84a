"""Which stored columns a reader wants, and how they come back together as Arrow fields.

A projection names top-level fields, or paths into structs (``a.b``), by name or by field id. It is kept as leaves: a
leaf is what is fetched and decoded, a top-level field with some or all of its leaves is what comes back.
"""

from __future__ import annotations

import base64
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from floeplan.errors import UnknownColumnError
from floeplan.parquet.assemble import FieldLayout, LeafLayout, arrow_field
from floeplan.parquet.footer import ParquetFooter
from floeplan.parquet.nested import merge
from floeplan.parquet.schema import Kind, LeafColumn, Repetition, SchemaNode

_Field: TypeAlias = tuple[int, tuple[str, ...], SchemaNode]


@dataclass(frozen=True, slots=True)
class ProjectedField:
    """One top-level field and those of its leaves that are wanted."""

    layout: FieldLayout
    leaves: tuple[LeafColumn, ...]

    def assemble(self, columns: Mapping[int, pa.ChunkedArray]) -> tuple[pa.Field, pa.ChunkedArray]:
        """The Arrow field and its data, from decoded leaves by index."""
        field = arrow_field(self.layout)
        parts = [columns[leaf.index] for leaf in self.leaves]
        if len(parts) == 1:
            return field.with_type(parts[0].type), parts[0]
        merged = [merge(field.type, arrays) for arrays in _aligned(parts)]
        column = pa.chunked_array(merged, type=merged[0].type)
        return field.with_type(column.type), column


def _aligned(parts: Sequence[pa.ChunkedArray]) -> Iterator[list[pa.Array]]:
    """Cut columns of one length so that each piece lies within a single chunk of every one of them."""
    cuts = {0, len(parts[0])}
    for part in parts:
        end = 0
        for chunk in part.chunks:
            end += len(chunk)
            cuts.add(end)
    bounds = sorted(cuts)
    for start, end in zip(bounds, bounds[1:] or bounds, strict=False):
        yield [part.slice(start, end - start).combine_chunks() for part in parts]


def project(
    footer: ParquetFooter, columns: Sequence[str | int] | None = None, *, case_sensitive: bool = True
) -> tuple[ProjectedField, ...]:
    """The wanted fields in the order asked for; all fields of the file when no columns are named."""
    tops = footer.root.children
    if columns is None:
        return tuple(_field(footer, position, _leaves_of(tops[position])) for position in range(len(tops)))
    wanted: dict[int, set[int]] = {}
    for column in columns:
        position, leaves = _find(footer, column, case_sensitive)
        wanted.setdefault(position, set()).update(leaves)
    return tuple(_field(footer, position, leaves) for position, leaves in wanted.items())


def project_leaves(footer: ParquetFooter, leaves: Iterable[int]) -> tuple[ProjectedField, ...]:
    """The fields that hold the given leaves, with nothing else inside."""
    chosen = set(leaves)
    held = {position: chosen & set(_leaves_of(node)) for position, node in enumerate(footer.root.children)}
    return tuple(_field(footer, position, inside) for position, inside in held.items() if inside)


def leaves_of_column(footer: ParquetFooter, column: str | int) -> list[int]:
    """The leaves of a column, none when the file does not have it."""
    try:
        return _find(footer, column, case_sensitive=True)[1]
    except UnknownColumnError:
        return []


def without_field_ids(table: pa.Table) -> pa.Table:
    """The table without the field ids some of its fields carry, for files in which they mean nothing."""
    bare = [_bare(field) for field in table.schema]
    columns = [column.cast(field.type) for column, field in zip(table.columns, bare, strict=True)]
    return pa.Table.from_arrays(
        [*columns, pa.nulls(table.num_rows)], schema=pa.schema([*bare, pa.field("", pa.null())])
    )


def _bare(field: pa.Field) -> pa.Field:
    if not pa.types.is_struct(field.type):
        return field.remove_metadata()
    return pa.field(field.name, pa.struct([_bare(child) for child in field.type]), field.nullable)


def _field(footer: ParquetFooter, position: int, leaves: Iterable[int]) -> ProjectedField:
    node = footer.root.children[position]
    inside = [footer.leaves[leaf] for leaf in _leaves_of(node)]
    layout = FieldLayout(
        tuple(part.encoded for part in node.walk()),
        inside[0].index,
        tuple(LeafLayout(leaf.physical, leaf.path) for leaf in inside),
        footer.created_by.encode(),
        _written_field(footer, position),
    )
    return ProjectedField(layout, tuple(footer.leaves[leaf] for leaf in sorted(leaves)))


def _leaves_of(node: SchemaNode) -> list[int]:
    return [part.leaf for part in node.walk() if part.leaf is not None]


def _find(footer: ParquetFooter, column: str | int, case_sensitive: bool) -> tuple[int, list[int]]:
    """Position of the top-level field and the leaves inside it that a name, a path or a field id stands for."""
    fields = [
        (position, path, node) for position, top in enumerate(footer.root.children) for path, node in _paths(top, ())
    ]
    if isinstance(column, int):
        matches = [field for field in fields if footer.ids_of_nodes.get(id(field[2])) == column]
    else:
        matches = _by_name(fields, column, case_sensitive)
    if len(matches) != 1:
        raise _not_one(footer, column, matches)
    position, _, node = matches[0]
    return position, _leaves_of(node)


def _by_name(fields: list[_Field], name: str, case_sensitive: bool) -> list[_Field]:
    """Fields of that name: a top-level name that has dots in it wins over a path, the exact name over another case."""
    exact = [field for field in fields if field[1] == (name,)] or [
        field for field in fields if ".".join(field[1]) == name
    ]
    if exact or case_sensitive:
        return exact
    return [field for field in fields if ".".join(field[1]).lower() == name.lower()]


def _paths(node: SchemaNode, prefix: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], SchemaNode]]:
    """A field and the struct fields below it; the inside of lists and maps is no column of its own."""
    path = (*prefix, node.name)
    yield path, node
    if node.annotation.kind not in (Kind.LIST, Kind.MAP) and node.repetition is not Repetition.REPEATED:
        for child in node.children:
            yield from _paths(child, path)


def _not_one(footer: ParquetFooter, column: str | int, matches: list[_Field]) -> UnknownColumnError:
    names = [node.name for node in footer.root.children]
    if matches:
        hint = f"its name fits {', '.join('.'.join(path) for _, path, _ in matches)}; write the exact one"
        return UnknownColumnError(f"column {column} of {footer.file} is ambiguous: {hint}", context={"column": column})
    close = difflib.get_close_matches(str(column), names)
    hint = f"did you mean {' or '.join(close)}?" if close else f"it has {', '.join(names[:20])}"
    return UnknownColumnError(f"{footer.file} has no column {column}; {hint}", context={"column": column})


def _written_field(footer: ParquetFooter, position: int) -> pa.Field | None:
    """The Arrow field the writer stored beside the Parquet one: what restores types Parquet does not have."""
    encoded = footer.key_values.get(b"ARROW:schema")
    if encoded is None:
        return None
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(encoded)))
    except (OSError, ValueError, pa.ArrowException):
        return None
    return schema.field(position) if len(schema) == len(footer.root.children) else None
