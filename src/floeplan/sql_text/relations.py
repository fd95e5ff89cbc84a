"""Queries over tables of a catalog, run by Spark: each table's name is replaced by a temporary view of ``fp.read``.

Rule: after FROM, JOIN and TABLE a name of several parts that the catalog has is read by Floeplan, with deletes and
partition specs of every kind; everything else in the query is Spark's: its own tables and views, files
(``parquet.`path```), functions. The last part of a name may be a branch or tag (``db.t.branch_b``).

References are found in the tokens, not in sqlglot's AST: sqlglot rejects ``TABLE db.t`` as a query, and the query must
stay as written for Spark.

Fail-safe: a name the catalog does not have is left for Spark to resolve or to refuse. Views have unique names and are
dropped when the statement ends.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.utils.config import Config
from sqlglot import TokenType

from floeplan.catalog import EMBEDDED, load_table
from floeplan.errors import BadInputError, UnknownCatalogError, UnknownTableError
from floeplan.spark.session import spark_errors_translated
from floeplan.sql_text.tokens import Cursor, is_name, is_word, name_chain, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
_REFS = ("branch_", "tag_")
_ENDS_FROM = (
    *("SELECT", "WHERE", "GROUP BY", "HAVING", "ORDER BY", "SORT BY", "CLUSTER BY", "DISTRIBUTE BY", "LIMIT", "WINDOW"),
    *("GROUP", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "UNION", "EXCEPT", "INTERSECT", "MINUS"),
)
"""Words that end a FROM clause, after which a comma separates no tables; sqlglot joins some to one token."""


@dataclass(frozen=True, slots=True)
class TableReference:
    """The name of a table in a query and its offsets (``end`` exclusive); ``needs_alias`` when it has none."""

    parts: tuple[str, ...]
    start: int
    end: int
    needs_alias: bool


@contextmanager
def table_views(spark: SparkSession, catalog: str | Catalog | None) -> Iterator[Callable[[str], str]]:
    """Yield a function that replaces the catalog's tables in a text by temporary views, dropped at the end."""
    views: list[str] = []

    def with_views(text: str) -> str:
        for reference in reversed(list(table_references(text))):
            found = find_table(reference.parts, catalog)
            if found is not None:
                views.append(f"floeplan_{uuid.uuid4().hex}")
                read_table(spark, *found).createOrReplaceTempView(views[-1])
                alias = f" AS {quoted(reference.parts[-1])}" if reference.needs_alias else ""
                text = text[: reference.start] + views[-1] + alias + text[reference.end :]
        return text

    try:
        yield with_views
    finally:
        for view in views:
            spark.catalog.dropTempView(view)


def query_frame(spark: SparkSession, text: str) -> DataFrame:
    """The rows of a query over tables of Spark and temporary views.

    Raises:
        BadInputError: Spark cannot parse or analyse the query.
    """
    with spark_errors_translated():
        frame = spark.sql(text)
        frame.schema  # noqa: B018 - Spark Connect analyses a query only when its schema is needed
        return frame


def read_table(spark: SparkSession, table: Table, ref: str | None) -> DataFrame:
    """Read a table, or a branch or tag of it, as a DataFrame."""
    from floeplan.spark.read.reader import read

    return read(spark, table, ref=ref)


def find_table(parts: Sequence[str], catalog: str | Catalog | None) -> tuple[Table, str | None] | None:
    """The table of the catalog that a name refers to, with its branch or tag; ``None`` when there is none."""
    if len(parts) < 2 or parts[0].lower() in _FILES or any("." in part for part in parts):
        return None
    candidates: list[tuple[Sequence[str], str | None]] = [(parts, None)]
    prefix = next((prefix for prefix in _REFS if len(parts) > 2 and parts[-1].startswith(prefix)), None)
    if prefix is not None:
        candidates.insert(0, (parts[:-1], parts[-1].removeprefix(prefix)))
    for name, ref in candidates:
        with suppress(UnknownTableError, UnknownCatalogError):
            return open_table(name, catalog), ref
    return None


def table_references(text: str) -> Iterator[TableReference]:
    """The names of several parts after FROM, JOIN and TABLE, and after a comma in a FROM clause."""
    tokens = Cursor(text).tokens
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
        # A name begins where a table is expected; names of one part and functions are Spark's.
        chain = name_chain(tokens, index)
        parts = tuple(str(one.text) for one in chain)
        after = index + 2 * len(chain) - 1
        following = tokens[after] if after < len(tokens) else None
        if len(parts) < 2 or (following is not None and following.token_type is TokenType.L_PAREN):
            continue
        if following is not None and is_word(following, "VERSION", "TIMESTAMP"):
            raise BadInputError(
                f"{'.'.join(parts)} {following.text} AS OF is not supported; name a branch or tag as the last part of "
                "the table's name, or read the snapshot with fp.read(spark, table, snapshot_id=…) as a view"
            )
        has_alias = following is not None and (
            following.token_type in (TokenType.VAR, TokenType.IDENTIFIER) or is_word(following, "AS")
        )
        needs_alias = not is_word(before, "TABLE") and not has_alias
        yield TableReference(parts, chain[0].start, chain[-1].end + 1, needs_alias)
