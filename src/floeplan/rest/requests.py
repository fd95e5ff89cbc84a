"""The body of ``POST …/plan``, parsed and validated, and what its names refer to in a table.

Rule: keys that the specification does not have are ignored, and so are keys with the value null, except ``filter``: a
null filter is an error, because a client that means "no filter" leaves it out. A value of another type is an error
that names the key. Names of columns refer to the schema of the snapshot or of the table.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import PrimitiveType

from floeplan.errors import BadInputError, UnknownColumnError
from floeplan.snapshot.reader import resolve_target
from floeplan.text import excerpt

_INT64 = range(-(2**63), 2**63)
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
MAX_NAMES = 10_000
"""The most names in ``select`` or ``stats-fields``."""


@dataclass(frozen=True, slots=True)
class PlanTableScanRequest:
    """What to scan. ``filter`` is expression JSON as the client sent it; ``True`` when there is none.

    ``select`` is ``None`` when all columns are read; it may have names of metadata columns (``_file``), which are the
    engine's own. ``start_snapshot_id`` is exclusive and makes the scan incremental, with ``end_snapshot_id``.
    """

    snapshot_id: int | None = None
    select: tuple[str, ...] | None = None
    filter: Any = True
    min_rows_requested: int | None = None
    case_sensitive: bool = True
    use_snapshot_schema: bool = False
    start_snapshot_id: int | None = None
    end_snapshot_id: int | None = None
    stats_fields: tuple[str, ...] | None = None

    @classmethod
    def parse(cls, body: bytes | str) -> PlanTableScanRequest:
        """Parse the JSON of a request.

        Raises:
            BadInputError: It is not JSON, or a key has an invalid value.
        """
        try:
            document = json.loads(body, parse_constant=_no_constant, parse_float=_finite)
        except RecursionError:
            raise BadInputError("the request nests too deeply") from None
        except (ValueError, UnicodeDecodeError) as error:
            raise BadInputError(f"the request is not valid JSON: {error}") from error
        return cls.from_json(document)

    @classmethod
    def from_json(cls, document: object) -> PlanTableScanRequest:
        """From a JSON document.

        Raises:
            BadInputError: A key has an invalid value, or keys contradict each other.
        """
        if not isinstance(document, Mapping):
            raise BadInputError("the request is not a JSON object")
        if "filter" in document and document["filter"] is None:
            raise BadInputError("filter is null; leave it out to scan every row")
        request = cls(
            snapshot_id=_number(document, "snapshot-id"),
            select=_names(document, "select"),
            filter=document.get("filter", True),
            min_rows_requested=_number(document, "min-rows-requested"),
            case_sensitive=_flag(document, "case-sensitive", True),
            use_snapshot_schema=_flag(document, "use-snapshot-schema", False),
            start_snapshot_id=_number(document, "start-snapshot-id"),
            end_snapshot_id=_number(document, "end-snapshot-id"),
            stats_fields=_names(document, "stats-fields"),
        )
        if (request.min_rows_requested or 0) < 0:  # taken for few rows, the plan would lose files
            raise BadInputError("min-rows-requested is negative", context={"key": "min-rows-requested"})
        if request.start_snapshot_id is not None and request.end_snapshot_id is None:
            raise BadInputError("start-snapshot-id needs an end-snapshot-id")
        if request.snapshot_id is not None and request.incremental:
            raise BadInputError("snapshot-id and start-snapshot-id or end-snapshot-id exclude each other")
        return request

    @property
    def incremental(self) -> bool:
        """Whether only rows appended between two snapshots are scanned."""
        return self.end_snapshot_id is not None

    @property
    def text(self) -> str:
        """The request as canonical JSON: equal requests have equal texts."""
        try:
            return _canonical(self._document())
        except RecursionError:
            raise BadInputError("the filter nests too deeply") from None

    def _document(self) -> dict[str, Any]:
        document = {
            "snapshot-id": self.snapshot_id,
            "select": self.select,
            "filter": self.filter,
            "min-rows-requested": self.min_rows_requested,
            "case-sensitive": self.case_sensitive,
            "use-snapshot-schema": self.use_snapshot_schema,
            "start-snapshot-id": self.start_snapshot_id,
            "end-snapshot-id": self.end_snapshot_id,
            "stats-fields": self.stats_fields,
        }
        return {key: value for key, value in document.items() if value is not None}

    def resolve(self, table: Table) -> tuple[Snapshot | None, tuple[Schema, ...]]:
        """The snapshot to scan, and the schemas that names may refer to, the preferred one first.

        Raises:
            BadInputError: The table has no such snapshot.
        """
        current = table.schema()
        wanted = self.end_snapshot_id if self.incremental else self.snapshot_id
        if wanted is None:
            return table.current_snapshot(), (current,)
        target = resolve_target(table, snapshot_id=wanted)
        if target.schema.schema_id == current.schema_id:
            return target.snapshot, (current,)
        # The table's schema is also meant where the head of a branch is read; ``Binder`` tells where they disagree.
        both = (target.schema, current) if self.use_snapshot_schema else (current, target.schema)
        return target.snapshot, both

    def projection(self, schemas: tuple[Schema, ...]) -> Schema:
        """The top-level columns that ``select`` names; names of metadata columns are the engine's own."""
        schema = schemas[0]
        if self.select is None:
            return schema
        fold = (lambda name: name) if self.case_sensitive else str.lower
        wanted = {fold(name) for name in self.select}
        known = {fold(field.name): field for schema in reversed(schemas) for field in schema.fields}
        used = {name for name in known if any(name == one or one.startswith(f"{name}.") for one in wanted)}
        for name in wanted:
            if not name.startswith("_") and not any(name == one or name.startswith(f"{one}.") for one in used):
                raise UnknownColumnError(
                    f"select has {name!r}, which is not a column of the table", context={"column": name}
                )
        return Schema(*(field for name, field in known.items() if name in used), schema_id=schema.schema_id)

    def stats_ids(self, schemas: tuple[Schema, ...]) -> frozenset[int] | None:
        """The primitive columns of ``stats-fields``; ``None`` when nothing was asked for."""
        if self.stats_fields is None:
            return None
        found = set()
        for name in self.stats_fields:
            fields = []
            for schema in schemas:
                try:
                    fields.append(schema.find_field(name, self.case_sensitive))
                except ValueError:
                    continue
            if not fields and not name.startswith("_"):
                raise UnknownColumnError(
                    f"stats-fields has {name!r}, which is not a column of the table", context={"column": name}
                )
            found |= {field.field_id for field in fields if isinstance(field.field_type, PrimitiveType)}
        return frozenset(found)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise BadInputError(f"the request has {excerpt(text)}, which is out of the range of a double")
    return value


def _number(document: Mapping[str, Any], key: str) -> int | None:
    value = document.get(key)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value in _INT64):
        return value
    raise BadInputError(f"{key} is not a 64-bit integer", context={"key": key})


def _flag(document: Mapping[str, Any], key: str, default: bool) -> bool:
    value = document.get(key)
    if value is None or isinstance(value, bool):
        return default if value is None else value
    raise BadInputError(f"{key} is not true or false", context={"key": key})


def _names(document: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    value = document.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise BadInputError(f"{key} is not a list of column names", context={"key": key})
    if len(value) > MAX_NAMES:
        raise BadInputError(f"{key} has more than {MAX_NAMES} names", context={"key": key})
    return tuple(value)
