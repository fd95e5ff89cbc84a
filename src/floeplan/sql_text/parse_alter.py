"""ALTER TABLE … ADD, DROP or REPLACE PARTITION FIELD, with the transforms as Iceberg's Spark extension writes them.

ADD PARTITION FIELD bucket(16, id) [AS name]
DROP PARTITION FIELD name | transform
REPLACE PARTITION FIELD name | transform WITH transform [AS name]

Fail-safe: any other ALTER is refused.
"""

from __future__ import annotations

from collections.abc import Callable

from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)
from sqlglot import TokenType

from floeplan.errors import BadInputError
from floeplan.partition.evolution import AddField, DropField, SpecChange, Term, replace_field
from floeplan.partition.transforms import Transform
from floeplan.sql_text.names import table_name
from floeplan.sql_text.statements import AlterPartitioning
from floeplan.sql_text.tokens import Cursor, Piece, whole_name
from floeplan.text import excerpt, one_line

_PLAIN: dict[str, Callable[[], Transform]] = {
    **dict.fromkeys(("identity",), IdentityTransform),
    **dict.fromkeys(("year", "years"), YearTransform),
    **dict.fromkeys(("month", "months"), MonthTransform),
    **dict.fromkeys(("day", "days", "date"), DayTransform),
    **dict.fromkeys(("hour", "hours", "date_hour"), HourTransform),
}
_SIZED: dict[str, Callable[[int], Transform]] = {"bucket": BucketTransform, "truncate": TruncateTransform}


def parse_alter(cursor: Cursor) -> AlterPartitioning:
    """Parse from ALTER to the end."""
    whole = one_line(cursor.text)
    cursor.expect("ALTER")
    if not cursor.accept("TABLE"):
        raise _unsupported(whole)
    table = table_name(cursor)
    if table.branch is not None:
        raise BadInputError(f"partitioning belongs to the table, not to branch {table.branch}; leave the branch out")
    changes: tuple[SpecChange, ...]
    if cursor.accept("ADD", "PARTITION", "FIELD"):
        changes = (AddField(_term(cursor), _as_name(cursor)),)
    elif cursor.accept("DROP", "PARTITION", "FIELD"):
        changes = (DropField(_term(cursor)),)
    elif cursor.accept("REPLACE", "PARTITION", "FIELD"):
        which = _term(cursor)
        cursor.expect("WITH")
        changes = replace_field(which, _term(cursor), _as_name(cursor))
    else:
        raise _unsupported(whole)
    cursor.expect_end()
    return AlterPartitioning(table, changes)


def parse_term(text: str) -> Term:
    """A transform of a column, as text: ``days(ts)``, ``bucket(16, id)``, ``region``."""
    cursor = Cursor(text)
    term = _term(cursor)
    cursor.expect_end()
    return term


def _term(cursor: Cursor) -> Term:
    parts = cursor.name()
    if not cursor.sees_symbol(TokenType.L_PAREN):
        return Term(parts)
    function = ".".join(parts).lower()
    arguments = cursor.items()
    if function in _PLAIN and len(arguments) == 1:
        return Term(whole_name(arguments[0]), _PLAIN[function]())
    if function in _SIZED and len(arguments) == 2:
        number, column = sorted(arguments, key=lambda piece: not _is_number(piece))
        return Term(whole_name(column), _SIZED[function](_positive(function, number)))
    known = ", ".join(("identity", "years", "months", "days", "hours", "bucket(n, column)", "truncate(n, column)"))
    raise BadInputError(
        f"{function}({', '.join(piece.text for piece in arguments)}) is no partition transform; there are {known}",
        context={"transform": function},
    )


def _is_number(piece: Piece) -> bool:
    return len(piece.tokens) == 1 and piece.tokens[0].token_type is TokenType.NUMBER


def _positive(function: str, piece: Piece) -> int:
    if not _is_number(piece) or not piece.text.isdecimal() or not 0 < int(piece.text) < 2**31:
        raise BadInputError(f"{function} takes a whole number above zero, not {piece.text!r}")
    return int(piece.text)


def _as_name(cursor: Cursor) -> str | None:
    if not cursor.accept("AS"):
        return None
    return cursor.word()


def _unsupported(text: str) -> BadInputError:
    return BadInputError(
        f"of ALTER only ALTER TABLE … ADD, DROP or REPLACE PARTITION FIELD is supported: {excerpt(text, 80)}",
        context={"statement": "ALTER"},
    )
