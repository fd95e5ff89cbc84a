"""The schema of a Parquet file: its tree, its leaf columns, its fields by name and id, and its Iceberg schema."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType, StructType

from floeplan.parquet.footer.logical_types import Annotation, Kind, Physical, Repetition, annotation_of, iceberg_type
from floeplan.parquet.footer.thrift import MAX_DEPTH, SCALAR, Struct, integer

MAX_ELEMENTS = 250_000


@dataclass(frozen=True, slots=True)
class LeafColumn:
    """One stored column.

    Attributes:
        field_id: The file's own when every field of the file has one, else assigned by position.
        type: The Iceberg type the values are read as; ``None`` when none fits.
        ordered: Whether the file's ``column_orders`` give this column the order its type defines, so that its min/max
            statistics can be compared; ``None`` when the file has no column orders, as files of old writers.
    """

    index: int
    path: tuple[str, ...]
    field_id: int
    physical: Physical
    annotation: Annotation
    type_length: int
    max_def: int
    max_rep: int
    type: PrimitiveType | None
    ordered: bool | None

    def __str__(self) -> str:
        return ".".join(self.path)


class SchemaNode(NamedTuple):
    """A node of the schema tree; ``encoded`` is its SchemaElement as stored in the footer, ``leaf`` its leaf index."""

    name: str
    repetition: Repetition
    physical: Physical | None
    annotation: Annotation
    type_length: int
    field_id: int | None
    children: tuple[SchemaNode, ...]
    leaf: int | None
    encoded: bytes

    def walk(self) -> Iterator[SchemaNode]:
        """The node and its descendants, depth first: the order of the footer."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def leaf_indexes(self) -> list[int]:
        """Indexes of the leaf columns at or below this node."""
        return [node.leaf for node in self.walk() if node.leaf is not None]


# SchemaElement in parquet.thrift: 1 type, 2 type_length, 3 repetition_type, 4 name, 5 num_children, 6 converted_type,
# 7 scale, 8 precision, 9 field_id, 10 logicalType, a union whose members have up to two fields.
_DETAILS_SHAPE = {1: SCALAR, 2: dict.fromkeys((1, 2, 3), SCALAR)}
ELEMENT_SHAPE = dict.fromkeys(range(1, 10), SCALAR) | {10: dict.fromkeys(range(1, 32), _DETAILS_SHAPE)}


def build_tree(count: int, element: Callable[[int], tuple[Struct, bytes]]) -> SchemaNode:
    """Build the tree from the footer's flat, depth-first list of elements; an invalid list is a ``ValueError``.

    ``element`` decodes one of them, and is called only until the first invalid one.
    """
    if not count:
        raise ValueError("the schema is empty")
    position = leaves = 0

    def next_node(depth: int) -> SchemaNode:
        nonlocal position, leaves
        if position >= count:
            raise ValueError("the schema ends before all fields are named")
        if depth > MAX_DEPTH:
            raise ValueError(f"the schema nests deeper than {MAX_DEPTH}")
        fields, encoded = element(position)
        position += 1
        name = fields.get(4)
        if not isinstance(name, bytes):
            raise ValueError("a field of the schema has no name")
        try:
            text = name.decode()
        except UnicodeDecodeError:
            raise ValueError(f"the field name {name!r} in the schema is not UTF-8") from None
        child_count = integer(fields, 5, 0)
        if not 0 <= child_count <= count - position:
            raise ValueError(f"a field has {child_count} children, more than there are schema elements left")
        is_leaf = 1 in fields and child_count == 0
        if depth and not child_count and not is_leaf:
            raise ValueError("a field of the schema has neither a type nor fields")
        leaf = leaves if is_leaf else None
        leaves += is_leaf
        return SchemaNode(
            text,
            Repetition(integer(fields, 3, 0)),
            Physical(integer(fields, 1)) if is_leaf else None,
            annotation_of(fields),
            integer(fields, 2, 0),
            integer(fields, 9) if 9 in fields else None,
            tuple(next_node(depth + 1) for _ in range(child_count)),
            leaf,
            encoded,
        )

    root = next_node(0)
    if position != count:
        raise ValueError("the schema has elements that belong to no field")
    return root


def _fields(node: SchemaNode, *, of_unknown: bool = True) -> Iterator[SchemaNode]:
    """The nodes that are fields in Iceberg's sense: all but the root and the repeated groups of lists and maps.

    The parts of a group of unknown type, such as a variant, are none of them, but have to be numbered too.
    """
    if not of_unknown and node.annotation.kind is Kind.UNKNOWN:
        return
    if is_list(node):
        children: tuple[SchemaNode, ...] = (list_element(node),)
    else:
        children = node.children[0].children if is_map(node) else node.children
    for child in children:
        yield child
        yield from _fields(child, of_unknown=of_unknown)


def is_list(node: SchemaNode) -> bool:
    """Whether a group is a list: annotated as one, with one repeated child."""
    return node.annotation.kind is Kind.LIST and _has_one_repeated_child(node)


def is_map(node: SchemaNode) -> bool:
    """Whether a group is a map: annotated as one, with one repeated child of key and value."""
    of_pairs = _has_one_repeated_child(node) and len(node.children[0].children) == 2
    return node.annotation.kind is Kind.MAP and of_pairs


def _has_one_repeated_child(node: SchemaNode) -> bool:
    return len(node.children) == 1 and node.children[0].repetition is Repetition.REPEATED


def list_element(node: SchemaNode) -> SchemaNode:
    """The element of a list: below the repeated group, or the repeated node itself in files of old writers."""
    # Backward-compatibility rules of Parquet's LogicalTypes.md for two-level lists.
    repeated = node.children[0]
    old_style = len(repeated.children) != 1 or repeated.name in ("array", f"{node.name}_tuple")
    return repeated if old_style else repeated.children[0]


def _struct_fields(nodes: tuple[SchemaNode, ...], ids: dict[int, int]) -> list[NestedField]:
    fields = []
    for node in nodes:
        # A repeated field outside of a LIST group is a list whose element has no field id: left out.
        type_ = None if node.repetition is Repetition.REPEATED else _field_type(node, ids)
        if type_ is not None:
            required = node.repetition is Repetition.REQUIRED
            fields.append(NestedField(ids[id(node)], node.name, type_, required=required))
    return fields


def _field_type(node: SchemaNode, ids: dict[int, int]) -> IcebergType | None:
    if node.physical is not None:
        return iceberg_type(node.physical, node.annotation, node.type_length)
    if is_list(node):
        element = list_element(node)
        type_ = _field_type(element, ids)
        required = element.repetition is not Repetition.OPTIONAL
        return type_ and ListType(ids[id(element)], type_, element_required=required)
    if is_map(node):
        key, value = node.children[0].children
        key_type, value_type = _field_type(key, ids), _field_type(value, ids)
        if key_type is None or value_type is None:
            return None
        required = value.repetition is Repetition.REQUIRED
        return MapType(ids[id(key)], key_type, ids[id(value)], value_type, value_required=required)
    if node.annotation.kind is Kind.UNKNOWN:
        return None
    return StructType(*_struct_fields(node.children, ids))


class IndexedField(NamedTuple):
    """A field: the position of the top-level field that holds it, its path and its node."""

    position: int
    path: tuple[str, ...]
    node: SchemaNode


@dataclass(frozen=True, eq=False)
class FileColumns:
    """The columns of all files with the same schema, shared by their footers."""

    root: SchemaNode
    ordered: Sequence[bool | None]
    """``LeafColumn.ordered`` of each leaf."""

    @cached_property
    def has_field_ids(self) -> bool:
        """Whether every field of the file has a field id, all of them distinct."""
        own = [node.field_id for node in _fields(self.root, of_unknown=False)]
        return None not in own and len(set(own)) == len(own)

    @cached_property
    def ids_of_nodes(self) -> dict[int, int]:
        """Field ids by the identity of the node: the file's own if usable, else assigned by position."""
        nodes = list(enumerate(_fields(self.root), start=1))
        if not self.has_field_ids:
            return {id(node): position for position, node in nodes}
        return {id(node): -position if node.field_id is None else node.field_id for position, node in nodes}

    @cached_property
    def leaves(self) -> tuple[LeafColumn, ...]:
        """All leaves in file order."""

        def below(node: SchemaNode, path: tuple[str, ...], max_def: int, max_rep: int) -> Iterator[LeafColumn]:
            for child in node.children:
                deeper = max_def + (child.repetition is not Repetition.REQUIRED)
                repeats = max_rep + (child.repetition is Repetition.REPEATED)
                names = (*path, child.name)
                if child.leaf is None or child.physical is None:
                    yield from below(child, names, deeper, repeats)
                    continue
                yield LeafColumn(
                    index=child.leaf,
                    path=names,
                    field_id=self.ids_of_nodes[id(child)],
                    physical=child.physical,
                    annotation=child.annotation,
                    type_length=child.type_length,
                    max_def=deeper,
                    max_rep=repeats,
                    type=iceberg_type(child.physical, child.annotation, child.type_length),
                    ordered=self.ordered[child.leaf],
                )

        return tuple(below(self.root, (), 0, 0))

    def iceberg_schema(self) -> Schema:
        """The Iceberg schema of a file read on its own; fields without an Iceberg type are left out."""
        return Schema(*_struct_fields(self.root.children, self.ids_of_nodes))

    @cached_property
    def field_ids(self) -> frozenset[int]:
        """Ids of all fields, groups included."""
        return frozenset(self.ids_of_nodes.values())

    @cached_property
    def leaf_by_id(self) -> Mapping[int, LeafColumn]:
        """Leaves by field id."""
        return {leaf.field_id: leaf for leaf in self.leaves}

    def find(self, column: str | int, *, case_sensitive: bool) -> list[IndexedField]:
        """All fields with a field id, a name or a path; a name or an id can match several.

        A top-level name with dots in it wins over a path, an exact match over case-insensitive ones.
        """
        exact, by_lower_path = self._indexed
        found = exact.get(column, [])
        if isinstance(column, int):
            return found
        found = [field for field in found if len(field.path) == 1] or found
        return found if found or case_sensitive else by_lower_path.get(column.lower(), [])

    @cached_property
    def _indexed(self) -> tuple[Mapping[str | int, list[IndexedField]], Mapping[str, list[IndexedField]]]:
        """Fields by path and by field id, and by path in lower case."""
        exact: dict[str | int, list[IndexedField]] = defaultdict(list)
        by_lower_path: dict[str, list[IndexedField]] = defaultdict(list)
        for position, top in enumerate(self.root.children):
            for path, node in _paths(top, ()):
                field = IndexedField(position, path, node)
                if id(node) in self.ids_of_nodes:
                    exact[self.ids_of_nodes[id(node)]].append(field)
                exact[".".join(path)].append(field)
                by_lower_path[".".join(path).lower()].append(field)
        return exact, by_lower_path


def _paths(node: SchemaNode, prefix: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], SchemaNode]]:
    """A field and the struct fields below it; elements of lists and maps are not columns."""
    path = (*prefix, node.name)
    yield path, node
    if node.annotation.kind not in (Kind.LIST, Kind.MAP) and node.repetition is not Repetition.REPEATED:
        for child in node.children:
            yield from _paths(child, path)
