"""The fields of a Parquet schema by name, by path and by id, so that many columns are found in one walk."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from floeplan.parquet.footer.schema import Kind, LeafColumn, Repetition, SchemaNode, assign_ids, has_field_ids


@dataclass(frozen=True, slots=True)
class IndexedField:
    """A field that can be asked for: the place of the top-level field it is in, its path and its node."""

    position: int
    path: tuple[str, ...]
    node: SchemaNode


@dataclass(frozen=True, slots=True)
class FieldIndex:
    """Fields by what they are asked for as; a name or an id can stand for several."""

    by_id: Mapping[int, list[IndexedField]]
    by_name: Mapping[str, list[IndexedField]]
    by_path: Mapping[str, list[IndexedField]]
    by_lower_path: Mapping[str, list[IndexedField]]

    @classmethod
    def of(cls, root: SchemaNode, ids_of_nodes: Mapping[int, int]) -> FieldIndex:
        """All fields below the root; ids by the identity of their node."""
        index = cls(defaultdict(list), defaultdict(list), defaultdict(list), defaultdict(list))
        for position, top in enumerate(root.children):
            for path, node in _paths(top, ()):
                field = IndexedField(position, path, node)
                joined = ".".join(path)
                if id(node) in ids_of_nodes:
                    index.by_id[ids_of_nodes[id(node)]].append(field)
                if len(path) == 1:
                    index.by_name[joined].append(field)
                index.by_path[joined].append(field)
                index.by_lower_path[joined.lower()].append(field)
        return index

    def find(self, column: str | int, *, case_sensitive: bool) -> list[IndexedField]:
        """What a column may be: a top-level name that has dots in it wins over a path, the exact name over others."""
        if isinstance(column, int):
            return self.by_id.get(column, [])
        exact = self.by_name.get(column) or self.by_path.get(column, [])
        return exact if exact or case_sensitive else self.by_lower_path.get(column.lower(), [])


@dataclass(frozen=True, eq=False)
class FileColumns:
    """The columns of all files with the same schema: what is worked out for one of them serves the others."""

    root: SchemaNode
    leaves: tuple[LeafColumn, ...]

    @cached_property
    def has_field_ids(self) -> bool:
        """Whether the field ids are the file's own, and not assigned by position."""
        return has_field_ids(self.root)

    @cached_property
    def ids_of_nodes(self) -> Mapping[int, int]:
        """Field ids by the identity of their node."""
        return assign_ids(self.root)

    @cached_property
    def fields(self) -> FieldIndex:
        """Fields by name, path and id."""
        return FieldIndex.of(self.root, self.ids_of_nodes)

    @cached_property
    def field_ids(self) -> frozenset[int]:
        """Ids of all fields, groups included."""
        return frozenset(self.ids_of_nodes.values())

    @cached_property
    def leaf_by_id(self) -> Mapping[int, LeafColumn]:
        """Leaves by field id."""
        return {leaf.field_id: leaf for leaf in self.leaves}


def _paths(node: SchemaNode, prefix: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], SchemaNode]]:
    """A field and the struct fields below it; the inside of lists and maps is no column of its own."""
    path = (*prefix, node.name)
    yield path, node
    if node.annotation.kind not in (Kind.LIST, Kind.MAP) and node.repetition is not Repetition.REPEATED:
        for child in node.children:
            yield from _paths(child, path)
