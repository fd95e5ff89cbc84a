"""Queries over tables of a catalog, run by Spark: their names become views of what Floeplan reads.

Rule: in FROM, JOIN and TABLE a name of several parts that the catalog has is read by Floeplan, deletes and specs of
every kind included; everything else in the query is Spark's: its own tables and views, files (``parquet.`path```),
functions. A branch or tag is named by the last part (``db.t.branch_b``).

Fail-safe: a name the catalog does not have is left for Spark to find or to refuse. Views have names of their own and
are dropped when the statement is done.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.utils.config import Config
from sqlglot import Token, TokenType

from floeplan.catalog import EMBEDDED, load_table
from floeplan.errors import BadInputError, UnknownCatalogError, UnknownTableError
from floeplan.spark.session import spark_errors_translated
from floeplan.sql_text.tokens import Cursor, is_name, is_word

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# The tables that names in a statement mean.
#
# Rule: of three or more parts the first may be a catalog: the one that was asked for, a configured one, or the embedded
# default. Everything else is ``namespace.name`` in the catalog that was asked for.


def open_table(parts: Sequence[str], catalog: str | Catalog | None = None) -> Table:
    """The table of a name.

    Raises:
        UnknownTableError: There is no such table.
    """
    for part in parts:
        if "." in part:
            raise BadInputError(f"the name {part!r} has a dot in it, which no catalog here can look up")
    asked = catalog.name if isinstance(catalog, Catalog) else catalog
    if len(parts) > 2 and parts[0] == asked:
        return load_table(".".join(parts[1:]), catalog)
    if len(parts) > 2 and parts[0] in {EMBEDDED, *Config().get_known_catalogs()}:
        return load_table(".".join(parts[1:]), parts[0])
    return load_table(".".join(parts), catalog)


# ---

_BEFORE = ("FROM", "JOIN", "TABLE")
_FILES = ("parquet", "orc", "json", "csv", "text", "avro", "delta")
_REFS = ("branch_", "tag_")
_ENDS_FROM = (
    *("SELECT", "WHERE", "GROUP BY", "HAVING", "ORDER BY", "SORT BY", "CLUSTER BY", "DISTRIBUTE BY", "LIMIT", "WINDOW"),
    *("GROUP", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "UNION", "EXCEPT", "INTERSECT", "MINUS"),
)
"""Words after which commas separate no tables; the tokenizer takes some of them in pairs."""


@dataclass(frozen=True, slots=True)
class Place:
    """A name where a table is expected; ``end`` is exclusive."""

    parts: tuple[str, ...]
    start: int
    end: int
    needs_alias: bool


@dataclass(slots=True)
class Views:
    """Views made for one statement."""

    spark: SparkSession
    names: list[str] = field(default_factory=list)

    def make(self, frame: DataFrame) -> str:
        """A view of a DataFrame; its name."""
        name = f"floeplan_{uuid.uuid4().hex}"
        frame.createOrReplaceTempView(name)
        self.names.append(name)
        return name


@contextmanager
def views(spark: SparkSession) -> Iterator[Views]:
    """Views that are dropped at the end."""
    made = Views(spark)
    try:
        yield made
    finally:
        for name in made.names:
            spark.catalog.dropTempView(name)


def query_frame(text: str, made: Views, catalog: str | Catalog | None) -> DataFrame:
    """The rows of a query.

    Raises:
        BadInputError: Spark cannot make sense of it.
    """
    with spark_errors_translated():
        frame = made.spark.sql(with_views(text, made, catalog))
        frame.schema  # noqa: B018 - Spark Connect looks at a query only now
        return frame


def with_views(text: str, made: Views, catalog: str | Catalog | None) -> str:
    """A text with views in the place of the catalog's tables."""
    for place in reversed(list(places(text))):
        found = find_table(place.parts, catalog)
        if found is not None:
            view = made.make(read_table(made.spark, *found))
            alias = f" AS `{place.parts[-1]}`" if place.needs_alias else ""
            text = text[: place.start] + view + alias + text[place.end :]
    return text


def quoted(name: str) -> str:
    """A part of a name that is taken literally."""
    return "`" + name.replace("`", "``") + "`"


def read_table(spark: SparkSession, table: Table, ref: str | None) -> DataFrame:
    """A table as a DataFrame."""
    from floeplan.spark.read.reader import read

    return read(spark, table, ref=ref)


def find_table(parts: Sequence[str], catalog: str | Catalog | None) -> tuple[Table, str | None] | None:
    """The table of the catalog that a name means, and the branch or tag; ``None`` when it is something else."""
    if len(parts) < 2 or parts[0].lower() in _FILES or any("." in part for part in parts):
        return None
    last = parts[-1]
    prefix = next((prefix for prefix in _REFS if len(parts) > 2 and last.startswith(prefix)), None)
    if prefix is not None:
        table = _table(parts[:-1], catalog)
        if table is not None:
            return table, last.removeprefix(prefix)
    table = _table(parts, catalog)
    return None if table is None else (table, None)


def _table(parts: Sequence[str], catalog: str | Catalog | None) -> Table | None:
    try:
        return open_table(parts, catalog)
    except (UnknownTableError, UnknownCatalogError):
        return None


def places(text: str) -> Iterator[Place]:
    """Names of several parts that stand where a table is expected."""
    cursor = Cursor(text)
    tokens = cursor.tokens
    in_from = [False]
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
        after_comma = before is not None and before.token_type is TokenType.COMMA and in_from[-1]
        if before is not None and is_name(token) and (is_word(before, *_BEFORE) or after_comma):
            yield from _place(cursor, index, is_word(before, "TABLE"))


def _place(cursor: Cursor, index: int, after_table: bool) -> Iterator[Place]:
    tokens = cursor.tokens
    last = index
    while last + 2 < len(tokens) and tokens[last + 1].token_type is TokenType.DOT and is_name(tokens[last + 2]):
        last += 2
    parts = tuple(str(token.text) for token in tokens[index : last + 1 : 2])
    following = tokens[last + 1] if last + 1 < len(tokens) else None
    if len(parts) < 2 or (following is not None and following.token_type is TokenType.L_PAREN):
        return
    if following is not None and is_word(following, "VERSION", "TIMESTAMP"):
        raise BadInputError(
            f"{'.'.join(parts)} {following.text} AS OF is not supported; name a branch or tag as the last part of the "
            "table's name, or read the snapshot with fp.read(spark, table, snapshot_id=…) as a view"
        )
    yield Place(parts, tokens[index].start, tokens[last].end + 1, not after_table and not _is_alias(following))


def _is_alias(token: Token | None) -> bool:
    if token is None:
        return False
    return token.token_type in (TokenType.VAR, TokenType.IDENTIFIER) or is_word(token, "AS")
