"""``CREATE TABLE … PARTITIONED BY … [AS query]`` and ``CREATE NAMESPACE``; ``create_table`` does the same in Python.

Rule: types and transforms are those of Iceberg's Spark integration: ``TIMESTAMP`` is with time zone, ``TINYINT`` and
``SMALLINT`` are ``int``. The spec of a new table is its spec 0.

Fail-safe: the whole statement is parsed before the catalog is asked. When the rows of a new table cannot be written,
the table is dropped again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg import types as iceberg
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchNamespaceError, TableAlreadyExistsError
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import BucketTransform, TruncateTransform
from sqlglot import TokenType, exp, parse_one
from sqlglot.errors import ParseError

from floeplan.catalog import EMBEDDED, open_catalog
from floeplan.display import Displayed
from floeplan.dml.append import append
from floeplan.dml.merge.compile import source_schema
from floeplan.dml.sources import is_data_frame, parquet_paths, parquet_schema
from floeplan.errors import BadInputError, UnknownTableError, UnsupportedError
from floeplan.partition.evolution import AddField, Term, evolved_spec
from floeplan.sql_text.parse import parse_term
from floeplan.sql_text.tokens import Cursor
from floeplan.transaction.upgrade_format import upgrade_format

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PRIMITIVES: Mapping[Any, iceberg.PrimitiveType] = {
    exp.DataType.Type.BOOLEAN: iceberg.BooleanType(),
    exp.DataType.Type.TINYINT: iceberg.IntegerType(),
    exp.DataType.Type.SMALLINT: iceberg.IntegerType(),
    exp.DataType.Type.INT: iceberg.IntegerType(),
    exp.DataType.Type.BIGINT: iceberg.LongType(),
    exp.DataType.Type.FLOAT: iceberg.FloatType(),
    exp.DataType.Type.DOUBLE: iceberg.DoubleType(),
    exp.DataType.Type.TEXT: iceberg.StringType(),
    exp.DataType.Type.VARCHAR: iceberg.StringType(),
    exp.DataType.Type.CHAR: iceberg.StringType(),
    exp.DataType.Type.BINARY: iceberg.BinaryType(),
    exp.DataType.Type.DATE: iceberg.DateType(),
    exp.DataType.Type.TIMESTAMP: iceberg.TimestamptzType(),
    exp.DataType.Type.TIMESTAMPTZ: iceberg.TimestamptzType(),
    exp.DataType.Type.TIMESTAMPLTZ: iceberg.TimestamptzType(),
    exp.DataType.Type.TIMESTAMPNTZ: iceberg.TimestampType(),
}
_FORMAT_VERSION = "format-version"
_NO_NAMESPACE = "unknown-namespace"
_DEPTH = {TokenType.LT: 1, TokenType.GT: -1}
_CLAUSES = ("USING", "PARTITIONED BY", "LOCATION", "TBLPROPERTIES", "COMMENT", "AS")


@dataclass(frozen=True, slots=True, repr=False)
class CreateResult(Displayed):
    """What a CREATE made.

    Attributes:
        name: The table or namespace.
        created: Whether it was created, or existed already.
        columns: The columns of a table with their types.
        partitioned_by: Its partition fields.
        rows_inserted: Rows that were written to it.
        snapshot_id: Their snapshot.
    """

    name: str
    created: bool
    columns: tuple[str, ...] = ()
    partitioned_by: tuple[str, ...] = ()
    rows_inserted: int = 0
    snapshot_id: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        lists = {"columns": list(self.columns), "partitioned_by": list(self.partitioned_by)}
        return {"operation": "create"} | {name: getattr(self, name) for name in self.__slots__} | lists


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table to create: ``CREATE TABLE`` as parsed; without columns they are those of the query."""

    parts: tuple[str, ...]
    if_not_exists: bool = False
    schema: Schema | None = None
    partitioned_by: tuple[str, ...] = ()
    location: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    query: str | None = None


def create_table(
    name: str,
    data: object,
    *,
    partitioned_by: Sequence[str] = (),
    location: str | None = None,
    properties: Mapping[str, str] | None = None,
    if_not_exists: bool = False,
    spark: SparkSession | None = None,
    catalog: str | Catalog | None = None,
) -> CreateResult:
    """Create a table, and write rows to it if some are given.

    Args:
        name: ``namespace.name``.
        data: The columns, as a PyIceberg or Arrow schema, or rows: an Arrow table or a Spark DataFrame.
        partitioned_by: Partition transforms, such as ``days(ts)``, ``bucket(16, id)`` or ``region``.
        location: Where the table is stored; chosen by the catalog when not given.
        properties: Table properties, ``format-version`` included.
        if_not_exists: Leave a table that exists as it is, instead of raising.
        spark: A session that writes the rows; a DataFrame brings its own.
        catalog: A PyIceberg catalog or the name of one.

    Raises:
        BadInputError: The table exists, the namespace does not, or the columns and transforms do not fit.
    """
    rows = None if isinstance(data, Schema | pa.Schema) else data
    new = NewTable(tuple(name.split(".")), if_not_exists, None, tuple(partitioned_by), location, dict(properties or {}))
    return _create(new, _schema_of(data), catalog, None if rows is None else lambda: rows, spark)


def create_for_files(
    name: str, data: Sequence[str], partitioned_by: str | None = None, catalog: str | Catalog | None = None
) -> CreateResult:
    """Create a table, and its namespace, with the columns of the first of some Parquet files, if it does not exist.

    Args:
        name: ``namespace.name``.
        data: Parquet files, or folders of them.
        partitioned_by: Partition transforms, separated by commas.
        catalog: A PyIceberg catalog or the name of one.
    """
    terms = tuple(piece.text for piece in Cursor(f"({partitioned_by})").items()) if partitioned_by else ()
    new = NewTable(tuple(name.split(".")), if_not_exists=True, partitioned_by=terms)
    opened, full_name = _place(new.parts, catalog)
    if opened.table_exists(full_name):
        return CreateResult(full_name, created=False)
    paths = parquet_paths(list(data))
    assert paths, "paths are files or folders with files"
    schema = parquet_schema(paths[0], load_file_io(opened.properties, paths[0]))
    try:
        return _create(new, schema, catalog, None, None)
    except UnknownTableError as error:
        if error.kind != _NO_NAMESPACE:
            raise
        opened.create_namespace(full_name.rpartition(".")[0])
        return _create(new, schema, catalog, None, None)


def run_create(
    cursor: Cursor,
    catalog: str | Catalog | None,
    spark: SparkSession | None,
    frame_of: Callable[[str], DataFrame] | None = None,
) -> CreateResult:
    """Run a CREATE; ``frame_of`` evaluates the query of ``CREATE TABLE … AS``."""
    if cursor.accept("CREATE", "NAMESPACE") or cursor.accept("CREATE", "DATABASE") or cursor.accept("CREATE", "SCHEMA"):
        return _create_namespace(cursor, catalog)
    new = parse_create(cursor)
    if new.query is None:
        assert new.schema is not None, "parse_create requires columns or a query"
        return _create(new, new.schema, catalog, None, spark)
    assert frame_of is not None, "the caller has found AS"
    frame = frame_of(new.query)
    return _create(new, _schema_of(frame), catalog, lambda: frame, spark)


def _create_namespace(cursor: Cursor, catalog: str | Catalog | None) -> CreateResult:
    quiet = cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.name()
    if not cursor.done:
        raise cursor.error("the statement should end here")
    opened = _opened(catalog)
    try:
        opened.create_namespace(name)
    except NamespaceAlreadyExistsError as error:
        if not quiet:
            raise BadInputError(f"namespace {'.'.join(name)} exists already; write IF NOT EXISTS") from error
        return CreateResult(".".join(name), created=False)
    return CreateResult(".".join(name), created=True)


def parse_create(cursor: Cursor) -> NewTable:
    """Parse ``CREATE TABLE``.

    Raises:
        BadInputError: It is another CREATE, or has a clause that is not supported.
    """
    if not cursor.accept("CREATE", "TABLE"):
        raise BadInputError(
            "of CREATE only CREATE TABLE and CREATE NAMESPACE are supported", context={"statement": "CREATE"}
        )
    quiet = cursor.accept("IF", "NOT", "EXISTS")
    parts = cursor.name()
    fields: Schema | None = None
    if cursor.sees_symbol(TokenType.L_PAREN):
        ids = count(1)
        try:
            fields = Schema(*(_column(text, ids) for text in _column_texts(cursor)))
        except ValueError as error:  # such as two columns of one name
            raise BadInputError(f"cannot create {'.'.join(parts)}: {error}") from error
        _refuse_same_names(fields)
    clauses: dict[str, Any] = {}
    while not cursor.done:
        clause = str(cursor.tokens[cursor.at].text).upper()
        if clause not in _CLAUSES:
            raise cursor.error(f"one of {', '.join(_CLAUSES)} is expected")
        if clause in clauses:
            raise cursor.error(f"{clause} is given twice")
        cursor.at += 1
        if clause == "AS":
            clauses[clause] = cursor.until().text
        elif clause == "PARTITIONED BY":
            clauses[clause] = tuple(piece.text for piece in cursor.items())
        elif clause == "TBLPROPERTIES":
            clauses[clause] = dict(_property(piece.text) for piece in cursor.items())
        elif clause == "USING":
            if (used := cursor.word().lower()) != "iceberg":
                raise BadInputError(f"USING {used}: only Iceberg tables are created; write USING iceberg")
            clauses[clause] = used
        else:
            clauses[clause] = _string(cursor)
    if fields is None and "AS" not in clauses:
        raise BadInputError("CREATE TABLE needs columns, or AS and a query")
    if fields is not None and "AS" in clauses:
        raise BadInputError("CREATE TABLE … AS takes its columns from the query; omit the list of columns")
    properties: dict[str, str] = clauses.get("TBLPROPERTIES", {})
    if "COMMENT" in clauses:
        properties["comment"] = clauses["COMMENT"]
    partitioned_by = clauses.get("PARTITIONED BY", ())
    return NewTable(parts, quiet, fields, partitioned_by, clauses.get("LOCATION"), properties, clauses.get("AS"))


def _refuse_same_names(schema: Schema) -> None:
    """Refuse names that differ in case only: Spark, and statements of SQL, could not tell the columns apart."""
    seen = dict[str, str]()
    for name in schema.column_names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise BadInputError(f"the columns {other} and {name} differ only in case", context={"column": name})


def _string(cursor: Cursor) -> str:
    if not cursor.sees_symbol(TokenType.STRING):
        raise cursor.error("a string is expected")
    cursor.at += 1
    return str(cursor.tokens[cursor.at - 1].text)


def _property(text: str) -> tuple[str, str]:
    """``'name' = 'value'``; names may be unquoted, and values numbers or booleans."""
    cursor = Cursor(text)
    name = _string(cursor) if cursor.sees_symbol(TokenType.STRING) else ".".join(cursor.name())
    if cursor.sees_symbol(TokenType.EQ):
        cursor.at += 1
    if len(cursor.tokens) != cursor.at + 1:
        raise BadInputError(f"a table property is 'name' = 'value', not {text}")
    return name, str(cursor.tokens[cursor.at].text)


def _column_texts(cursor: Cursor) -> list[str]:
    """The texts of the columns: items of a list, in which a comma between ``<`` and ``>`` does not separate items."""
    found: list[str] = []
    depth = 0
    for piece in cursor.items():
        if depth:
            found[-1] += f", {piece.text}"
        else:
            found.append(piece.text)
        depth += sum(_DEPTH.get(token.token_type, 0) for token in piece.tokens)
    return found


def _column(text: str, ids: Any) -> iceberg.NestedField:
    """``name TYPE [NOT NULL] [COMMENT 'text']``."""
    cursor = Cursor(text)
    name = cursor.word()
    first, depth = cursor.at, 0
    while not cursor.done and (depth or not (cursor.sees("NOT", "NULL") or cursor.sees("COMMENT"))):
        depth += _DEPTH.get(cursor.tokens[cursor.at].token_type, 0)
        cursor.at += 1
    if cursor.at == first:
        raise BadInputError(f"column {name} has no type: {text}", context={"column": name})
    type_text = cursor.piece(first, cursor.at).text
    required = cursor.accept("NOT", "NULL")
    comment = _string(cursor) if cursor.accept("COMMENT") else None
    if not cursor.done:
        raise BadInputError(f"a column is name TYPE [NOT NULL] [COMMENT 'text'], not {text}")
    field_id = next(ids)
    try:
        parsed = parse_one(type_text, into=exp.DataType, dialect="spark")
    except ParseError as error:
        raise BadInputError(f"{type_text} is not a Spark type", context={"column": name}) from error
    return iceberg.NestedField(field_id, name, _type(parsed, name, ids), required=required, doc=comment)


def _type(parsed: exp.DataType, name: str, ids: Any) -> iceberg.IcebergType:
    kind = parsed.this
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    if kind is exp.DataType.Type.DECIMAL:
        precision, scale = [*(int(one.name) for one in parsed.expressions), *(10, 0)[len(parsed.expressions) :]]
        if not scale <= precision <= 38 or precision < 1:
            raise BadInputError(f"column {name} is {parsed.sql('spark')}, but a decimal has 1 to 38 digits in all")
        return iceberg.DecimalType(precision, scale)
    inner = parsed.expressions
    if kind is exp.DataType.Type.ARRAY and len(inner) == 1:
        return iceberg.ListType(next(ids), _type(inner[0], name, ids), element_required=False)
    if kind is exp.DataType.Type.MAP and len(inner) == 2:
        key, value = next(ids), next(ids)
        return iceberg.MapType(key, _type(inner[0], name, ids), value, _type(inner[1], name, ids), value_required=False)
    if kind is exp.DataType.Type.STRUCT:
        fields = []
        for one in inner:
            required = any(
                isinstance(part.kind, exp.NotNullColumnConstraint) for part in one.args.get("constraints", ())
            )
            fields.append(
                iceberg.NestedField(next(ids), one.name, _type(one.args["kind"], name, ids), required=required)
            )
        return iceberg.StructType(*fields)
    raise BadInputError(f"column {name} has the type {parsed.sql('spark')}, which no Iceberg table has")


def _schema_of(data: Any) -> Schema | pa.Schema:
    """The columns of a schema, of Arrow rows, or of a DataFrame."""
    if isinstance(data, Schema | pa.Schema):
        return data
    if is_data_frame(data):
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(data.schema)
    schema = getattr(data, "schema", None)
    if not isinstance(schema, pa.Schema):
        raise BadInputError(
            f"cannot create a table from {type(data).__name__}; give a schema, Arrow rows or a DataFrame"
        )
    return schema


def _create(
    new: NewTable,
    schema: Schema | pa.Schema,
    catalog: str | Catalog | None,
    rows: Callable[[], object] | None,
    spark: SparkSession | None,
) -> CreateResult:
    opened, name = _place(new.parts, catalog)
    made: Table | None = None
    try:
        # With the ids that the catalog will assign, so that the spec refers to the same columns.
        columns = assign_fresh_schema_ids(schema if isinstance(schema, Schema) else source_schema(schema))
        spec = _spec(columns, new.partitioned_by)
        version, properties = _format_version(new.properties)
        made = opened.create_table(name, columns, new.location, spec, properties=properties)
    except TableAlreadyExistsError as error:
        if not new.if_not_exists:
            message = f"table {name} exists already; drop it, or write IF NOT EXISTS"
            raise BadInputError(message, kind="table-exists", context={"table": name}) from error
        return CreateResult(name, created=False)
    except NoSuchNamespaceError as error:
        namespace = name.rpartition(".")[0]
        message = f"there is no namespace {namespace!r}; create it with CREATE NAMESPACE {namespace}"
        raise UnknownTableError(message, kind=_NO_NAMESPACE, context={"namespace": namespace}) from error
    except (UnsupportedError, BadInputError):
        raise
    except ValueError as error:  # such as a type that the format version does not have
        raise BadInputError(f"cannot create {name}: {error}", context={"table": name}) from error
    inserted, snapshot_id = 0, None
    try:
        if version > made.metadata.format_version:
            upgrade_format(made, version)
        if rows is not None:
            result = append(made, rows(), spark=spark)
            inserted, snapshot_id = result.rows_inserted, result.snapshot_id
    except BaseException:
        opened.drop_table(name)
        raise
    fields = tuple(f"{one.name} {one.field_type}" for one in made.schema().fields)
    partitions = tuple(one.name for one in made.spec().fields)
    return CreateResult(name, True, fields, partitions, inserted, snapshot_id)


def _format_version(properties: Mapping[str, str]) -> tuple[int, dict[str, str]]:
    """The requested format version, and the properties to create the table with.

    PyIceberg creates no tables beyond format 2, so that they are upgraded before anything is written.
    """
    text = properties.get(_FORMAT_VERSION, "2")
    if text not in ("1", "2", "3", "4"):
        raise BadInputError(f"{_FORMAT_VERSION} is {text!r} but must be 1, 2, 3 or 4", context={"value": text})
    return int(text), {**properties, _FORMAT_VERSION: str(min(int(text), 2))}


def _place(parts: Sequence[str], catalog: str | Catalog | None) -> tuple[Catalog, str]:
    """The catalog of a new table, which the first of three parts may name, and its name there."""
    from pyiceberg.utils.config import Config

    if len(parts) < 2:
        raise BadInputError(f"{'.'.join(parts)!r} does not name a table; write namespace.name")
    requested = catalog.name if isinstance(catalog, Catalog) else catalog
    if len(parts) > 2 and parts[0] == requested:
        return _opened(catalog), ".".join(parts[1:])
    if len(parts) > 2 and parts[0] in {EMBEDDED, *Config().get_known_catalogs()}:
        return open_catalog(parts[0]), ".".join(parts[1:])
    return _opened(catalog), ".".join(parts)


def _opened(catalog: str | Catalog | None) -> Catalog:
    return catalog if isinstance(catalog, Catalog) else open_catalog(catalog)


def _spec(schema: Schema, terms: Sequence[str]) -> PartitionSpec:
    """The spec of a new table, with the names that Iceberg gives to fields."""
    if not terms:
        return UNPARTITIONED_PARTITION_SPEC
    empty = new_table_metadata(schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "file:///new")
    parsed = [parse_term(term) for term in terms]
    fields = evolved_spec(empty, [AddField(term, _field_name(term)) for term in parsed]).fields
    numbered = (
        PartitionField(one.source_id, PARTITION_FIELD_ID_START + number, one.transform, one.name)
        for number, one in enumerate(fields)
    )
    return PartitionSpec(*numbered, spec_id=0)


def _field_name(term: Term) -> str | None:
    """The name in a new table: without the parameter that a field has that is added later (``id_bucket_16``)."""
    match term.transform:
        case BucketTransform():
            return f"{'.'.join(term.column)}_bucket"
        case TruncateTransform():
            return f"{'.'.join(term.column)}_trunc"
    return None
