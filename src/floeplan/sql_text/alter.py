"""ALTER TABLE … ADD, DROP or REPLACE PARTITION FIELD, with the transforms of Iceberg's Spark SQL extensions.

    ADD PARTITION FIELD bucket(16, id) [AS name]
    DROP PARTITION FIELD name | transform
    REPLACE PARTITION FIELD name | transform WITH transform [AS name]

sqlglot makes an opaque ``Command`` of these statements, so they are parsed by hand. Fail-safe: any other ALTER is
refused.
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
from floeplan.sql_text.statements import AlterPartitioning, target_name
from floeplan.sql_text.tokens import Cursor
from floeplan.text import excerpt, one_line

_UNARY: dict[str, Callable[[], Transform]] = {
    **dict.fromkeys(("identity",), IdentityTransform),
    **dict.fromkeys(("year", "years"), YearTransform),
    **dict.fromkeys(("month", "months"), MonthTransform),
    **dict.fromkeys(("day", "days", "date"), DayTransform),
    **dict.fromkeys(("hour", "hours", "date_hour"), HourTransform),
}
_WITH_PARAMETER: dict[str, Callable[[int], Transform]] = {"bucket": BucketTransform, "truncate": TruncateTransform}


def parse_alter(cursor: Cursor) -> AlterPartitioning:
    """Parse an ALTER TABLE statement."""
    unsupported = BadInputError(
        "of ALTER only ALTER TABLE … ADD, DROP or REPLACE PARTITION FIELD is supported: "
        f"{excerpt(one_line(cursor.text), 80)}",
        context={"statement": "ALTER"},
    )
    if not cursor.accept("ALTER", "TABLE"):
        raise unsupported
    table = target_name(cursor.name())
    if table.branch is not None:
        raise BadInputError(f"the partition spec belongs to the table, not to branch {table.branch}; omit the branch")
    changes: tuple[SpecChange, ...]
    if cursor.accept("ADD", "PARTITION", "FIELD"):
        changes = (AddField(_term(cursor), _field_name(cursor)),)
    elif cursor.accept("DROP", "PARTITION", "FIELD"):
        changes = (DropField(_term(cursor)),)
    elif cursor.accept("REPLACE", "PARTITION", "FIELD"):
        replaced = _term(cursor)
        if not cursor.accept("WITH"):
            raise cursor.error("WITH is expected")
        changes = replace_field(replaced, _term(cursor), _field_name(cursor))
    else:
        raise unsupported
    _expect_end(cursor)
    return AlterPartitioning(table, changes)


def parse_term(text: str) -> Term:
    """Parse a partition transform: ``days(ts)``, ``bucket(16, id)``, ``region``."""
    cursor = Cursor(text)
    term = _term(cursor)
    _expect_end(cursor)
    return term


def _term(cursor: Cursor) -> Term:
    name = cursor.name()
    if not cursor.sees_symbol(TokenType.L_PAREN):
        return Term(name)
    function = ".".join(name).lower()
    arguments = [piece.text for piece in cursor.items()]
    if function in _UNARY and len(arguments) == 1:
        return Term(_column(arguments[0]), _UNARY[function]())
    if function in _WITH_PARAMETER and len(arguments) == 2:
        # Both orders are in use: bucket(16, id) is Iceberg's, truncate(name, 4) an older form of its Spark extensions.
        parameter, column = sorted(arguments, key=lambda argument: not argument.isdecimal())
        if not parameter.isdecimal() or not 0 < int(parameter) < 2**31:
            raise BadInputError(f"{function} takes a whole number above zero, not {parameter!r}")
        return Term(_column(column), _WITH_PARAMETER[function](int(parameter)))
    known = "identity, years, months, days, hours, bucket(n, column), truncate(n, column)"
    raise BadInputError(
        f"{function}({', '.join(arguments)}) is not a partition transform; supported: {known}",
        context={"transform": function},
    )


def _column(text: str) -> tuple[str, ...]:
    cursor = Cursor(text)
    path = cursor.name()
    if not cursor.done:
        raise BadInputError(f"{text!r} is not the name of a column")
    return path


def _field_name(cursor: Cursor) -> str | None:
    return cursor.word() if cursor.accept("AS") else None


def _expect_end(cursor: Cursor) -> None:
    if not cursor.done:
        raise cursor.error("the statement should end here")
