"""Tables of a catalog in queries: where a query names them, and which snapshot or metadata table each name means.

Rule: after FROM, JOIN and TABLE a name of several parts that the catalog has is read by Floeplan, with deletes and
partition specs of every kind; everything else in the query is Spark's: its own tables and views, files
(``parquet.`path```), functions. The last part of a name may be a branch, a tag, a snapshot or a metadata table, as in
Iceberg (``db.t.branch_b``, ``db.t.tag_v1``, ``db.t.snapshot_id_5``, ``db.t.at_timestamp_1700000000000``,
``db.t.files``), and ``VERSION AS OF`` or ``TIMESTAMP AS OF`` may follow it. A name of one part is a table that
``fp.attach`` has registered.

References are found in the tokens, not in sqlglot's AST: sqlglot rejects ``TABLE db.t`` as a query, and the query must
stay as written for Spark.

Fail-safe: a name the catalog does not have is left for Spark to resolve or to refuse, and so is a name of one part
that the query itself defines.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.utils.config import Config
from sqlglot import Token, TokenType

from floeplan.catalog import EMBEDDED, existing_catalog, load_table
from floeplan.errors import BadInputError, UnknownCatalogError, UnknownTableError
from floeplan.snapshot.reader import ScanTarget, resolve_target
from floeplan.sql_text.tokens import Cursor, is_name, is_word, name_chain


def open_table(parts: Sequence[str], catalog: str | Catalog | None = None) -> Table:
    """Load the table of a name.

    The first of three or more parts may be a catalog: the given one, a configured one, or the embedded default. Any
    other name is ``namespace.name`` in the given catalog.

    Raises:
        UnknownTableError: There is no such table.
    """
    for part in parts:
        if "." in part:
            raise BadInputError(f"the name {part!r} contains a dot, which PyIceberg catalogs cannot look up")
    requested = catalog.name if isinstance(catalog, Catalog) else catalog
    if len(parts) > 2 and parts[0] == requested:
        return load_table(".".join(parts[1:]), catalog)
    if len(parts) > 2 and parts[0] in {EMBEDDED, *Config().get_known_catalogs()}:
        return load_table(".".join(parts[1:]), parts[0])
    return load_table(".".join(parts), catalog)


_BEFORE = ("FROM", "JOIN", "TABLE")
_FILES = ("parquet", "orc", "json", "csv", "text", "avro", "delta")
_SNAPSHOTS = {"branch_": "ref", "tag_": "ref", "snapshot_id_": "snapshot_id", "at_timestamp_": "timestamp_ms"}
"""Prefixes of the last part of a name, and the argument that the rest of it is."""
_METADATA = frozenset(
    (
        *("snapshots", "history", "refs", "metadata_log_entries", "manifests", "entries", "files", "data_files"),
        *("delete_files", "partitions", "position_deletes"),
        *("all_manifests", "all_entries", "all_files", "all_data_files", "all_delete_files"),
    )
)
"""The names that ``spark.metadata_tables`` knows."""
_VERSION, _TIMESTAMP = ("VERSION", "SYSTEM_VERSION"), ("TIMESTAMP", "SYSTEM_TIME")
_ENDS_FROM = (
    *("SELECT", "WHERE", "GROUP BY", "HAVING", "ORDER BY", "SORT BY", "CLUSTER BY", "DISTRIBUTE BY", "LIMIT", "WINDOW"),
    *("GROUP", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "UNION", "EXCEPT", "INTERSECT", "MINUS"),
)
"""Words that end a FROM clause, after which a comma separates no tables; sqlglot joins some to one token."""


@dataclass(frozen=True, slots=True)
class TableReference:
    """The name of a table in a query and its offsets (``end`` exclusive), with the clause of its snapshot.

    Attributes:
        parts: The parts of the name.
        start: Where the name begins.
        end: Where the name, or the clause of its snapshot, ends.
        needs_alias: Whether the table has no alias, and another name in its place would need one.
        version: The value after VERSION AS OF: a snapshot id, or a branch or tag.
        timestamp: The expression after TIMESTAMP AS OF.
    """

    parts: tuple[str, ...]
    start: int
    end: int
    needs_alias: bool
    version: str | None = None
    timestamp: str | None = None


@dataclass(frozen=True, slots=True)
class Relation:
    """The table that a reference names, its snapshot, and the metadata table, if it names one."""

    table: Table
    snapshot_id: int | None = None
    ref: str | None = None
    timestamp_ms: int | None = None
    metadata: str | None = None

    def target(self) -> ScanTarget:
        """The snapshot and the schema to read."""
        return resolve_target(self.table, snapshot_id=self.snapshot_id, ref=self.ref, timestamp_ms=self.timestamp_ms)


def find_table(parts: Sequence[str], catalog: str | Catalog | None) -> tuple[Table, str | None] | None:
    """The table of the catalog that a name refers to, with its branch or tag; ``None`` when there is none."""
    found = find_relation(parts, catalog)
    if found is None or found.snapshot_id is not None or found.timestamp_ms is not None or found.metadata is not None:
        return None
    return found.table, found.ref


def find_relation(parts: Sequence[str], catalog: str | Catalog | None) -> Relation | None:
    """What a name refers to in the catalog; ``None`` when there is no such table."""
    if len(parts) < 2 or parts[0].lower() in _FILES or any("." in part for part in parts):
        return None
    *owner, last = parts
    prefix = next((prefix for prefix in _SNAPSHOTS if last.lower().startswith(prefix)), None)
    with suppress(UnknownTableError, UnknownCatalogError):
        if len(owner) > 1 and prefix is not None:
            kind, value = _SNAPSHOTS[prefix], last[len(prefix) :]
            if kind == "ref":
                return Relation(open_table(owner, catalog), ref=value)
            if value.isdecimal() and kind == "snapshot_id":
                return Relation(open_table(owner, catalog), snapshot_id=int(value))
            if value.isdecimal():
                return Relation(open_table(owner, catalog), timestamp_ms=int(value))
    with suppress(UnknownTableError, UnknownCatalogError):
        return Relation(open_table(parts, catalog))
    with suppress(UnknownTableError, UnknownCatalogError):
        if len(owner) > 1 and last.lower() in _METADATA:
            return Relation(open_table(owner, catalog), metadata=last.lower())
    return None


def refuse_unknown_tables(text: str, catalog: str | Catalog | None) -> None:
    """Refuse a query that names a table which a namespace of the catalog does not have, or no metadata table.

    For queries for which a session is started: it has no tables of its own but those of Spark's configuration.

    Raises:
        UnknownTableError: There is no such table or metadata table.
    """
    for parts in {reference.parts for reference in table_references(text)}:
        if find_relation(parts, catalog) is not None:
            continue
        if len(parts) > 2 and find_relation(parts[:-1], catalog) is not None:
            name, last = ".".join(parts[:-1]), parts[-1]
            close = difflib.get_close_matches(last.lower(), _METADATA)
            hint = f"did you mean {' or '.join(close)}?" if close else f"it has {', '.join(sorted(_METADATA))}"
            raise UnknownTableError(f"{name} has no metadata table {last}; {hint}", context={"table": name})
        if len(parts) == 2:
            with suppress(UnknownCatalogError):
                opened = catalog if isinstance(catalog, Catalog) else existing_catalog(catalog)
                if parts[:1] in opened.list_namespaces():
                    open_table(parts, opened)


def as_of(relation: Relation, reference: TableReference, timestamp_ms: int | None) -> Relation:
    """A relation at the version or time of its reference; ``timestamp_ms`` is the value of its expression."""
    if reference.version is None and timestamp_ms is None:
        return relation
    if relation != Relation(relation.table, metadata=relation.metadata):
        raise BadInputError(f"{'.'.join(reference.parts)} already names a snapshot; omit AS OF")
    if reference.version is None:
        return replace(relation, timestamp_ms=timestamp_ms)
    version = reference.version
    is_ref = version in relation.table.metadata.refs or not version.isdecimal()
    return replace(relation, ref=version) if is_ref else replace(relation, snapshot_id=int(version))


def table_references(text: str, *, single: bool = False) -> Iterator[TableReference]:
    """The tables that a query names: after FROM, JOIN and TABLE, and after a comma in a FROM clause.

    Args:
        text: The query.
        single: Whether to include names of one part that the query does not define itself.
    """
    cursor = Cursor(text)
    tokens = cursor.tokens
    defined = defined_names(cursor) if single else set()
    in_from = [False]  # per level of parentheses
    for index, token in enumerate(tokens):
        if token.token_type is TokenType.L_PAREN:
            in_from.append(False)
        elif token.token_type is TokenType.R_PAREN:
            in_from.pop()
        elif is_word(token, "FROM"):
            in_from[-1] = True
        elif is_word(token, *_ENDS_FROM):
            in_from[-1] = False
        before = tokens[index - 1] if index else None
        if before is None or not is_name(token):
            continue
        if not is_word(before, *_BEFORE) and not (before.token_type is TokenType.COMMA and in_from[-1]):
            continue
        # A name begins where a table is expected; functions are Spark's.
        chain = name_chain(tokens, index)
        parts = tuple(str(one.text) for one in chain)
        cursor.at = index + 2 * len(chain) - 1
        if cursor.sees_symbol(TokenType.L_PAREN) or (len(parts) < 2 and (not single or parts[0].lower() in defined)):
            continue
        end = chain[-1].end + 1
        version, timestamp = _snapshot_clause(cursor)
        if version is not None or timestamp is not None:
            end = tokens[cursor.at - 1].end + 1
        has_alias = cursor.sees("AS") or any(map(cursor.sees_symbol, (TokenType.VAR, TokenType.IDENTIFIER)))
        # An alias would follow TABLESAMPLE; without one the columns cannot be qualified.
        needs_alias = not (has_alias or is_word(before, "TABLE") or cursor.sees_symbol(TokenType.TABLE_SAMPLE))
        yield TableReference(parts, chain[0].start, end, needs_alias, version, timestamp)


def defined_names(cursor: Cursor) -> set[str]:
    """Names that a query may define itself, lowercase: ``name AS (`` and ``name (columns) AS (``."""
    found, tokens = set(), cursor.tokens
    for index, token in enumerate(tokens[:-1]):
        after = index + 1
        if tokens[after].token_type is TokenType.L_PAREN:
            after = cursor.closing[after] + 1
        opens = after + 1 < len(tokens) and tokens[after + 1].token_type is TokenType.L_PAREN
        if is_name(token) and opens and is_word(tokens[after], "AS"):
            found.add(str(token.text).lower())
    return found


def _snapshot_clause(cursor: Cursor) -> tuple[str | None, str | None]:
    """Step over ``[FOR] VERSION AS OF value`` or ``[FOR] TIMESTAMP AS OF expression``; the value, or the expression."""
    first = cursor.at
    cursor.accept("FOR")
    is_version = any(cursor.sees(word, "AS", "OF") for word in _VERSION)
    if not is_version and not any(cursor.sees(word, "AS", "OF") for word in _TIMESTAMP):
        cursor.at = first
        return None, None
    cursor.at += 3
    if is_version:
        if not any(map(cursor.sees_symbol, (TokenType.NUMBER, TokenType.STRING))):
            raise cursor.error("a snapshot id, or a branch or tag in quotes, is expected")
        cursor.at += 1
        return str(cursor.tokens[cursor.at - 1].text), None
    begin = cursor.at
    _step_over_operand(cursor)
    while any(map(cursor.sees_symbol, (TokenType.PLUS, TokenType.DASH))):
        cursor.at += 1
        _step_over_operand(cursor)
    return None, cursor.piece(begin, cursor.at).text


def _step_over_operand(cursor: Cursor) -> None:
    """Step over a literal, an interval, a function or an expression in parentheses."""
    if cursor.done:
        raise cursor.error("a timestamp is expected")
    token: Token = cursor.tokens[cursor.at]
    if token.token_type is TokenType.L_PAREN:
        cursor.at = cursor.closing[cursor.at] + 1
        return
    cursor.at += 1
    if is_word(token, "INTERVAL"):
        cursor.at += 2  # its value and its unit
    elif is_word(token, "TIMESTAMP", "DATE", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ") and cursor.sees_symbol(TokenType.STRING):
        cursor.at += 1
    elif cursor.sees_symbol(TokenType.L_PAREN):
        cursor.at = cursor.closing[cursor.at] + 1
    if cursor.at > len(cursor.tokens):
        raise cursor.error("a timestamp is expected")
