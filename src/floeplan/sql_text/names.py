"""The parts that statements share: the target's name and branch, aliases, conditions and assignments."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import TokenType

from floeplan.errors import BadInputError
from floeplan.sql_text.qualifiers import Qualifiers
from floeplan.sql_text.statements import Assignment, TableName
from floeplan.sql_text.tokens import Cursor, is_name, is_word

_BRANCH, _TAG = "branch_", "tag_"
_NOT_A_TARGET = ("snapshot_id_", "at_timestamp_", _TAG)


def table_name(cursor: Cursor) -> TableName:
    """The table a statement changes: ``[catalog.]namespace.name[.branch_b]``."""
    parts = cursor.name()
    last = parts[-1]
    if len(parts) > 2 and last.startswith(_BRANCH):
        return TableName(parts[:-1], last.removeprefix(_BRANCH))
    if len(parts) > 2 and last.startswith(_NOT_A_TARGET):
        raise BadInputError(
            f"{'.'.join(parts)} is a state of the table that cannot be changed; name the table or a branch",
            context={"table": ".".join(parts)},
        )
    if len(parts) < 2:
        raise BadInputError(f"{parts[0]!r} does not name a table; write namespace.name", context={"table": parts[0]})
    return TableName(parts)


def alias_of(cursor: Cursor, *followed_by: str) -> str | None:
    """``AS name`` or a bare name that is none of the words that may follow."""
    if cursor.accept("AS"):
        return cursor.word()
    if cursor.done or not is_name(cursor.tokens[cursor.at]) or is_word(cursor.tokens[cursor.at], *followed_by):
        return None
    return cursor.word()


def condition_of(cursor: Cursor, names: Qualifiers, what: str) -> str | None:
    """The condition after WHERE, to the end, if there is one."""
    return names.expression(cursor.rest(), what) if cursor.accept("WHERE") else None


def assignments_of(
    cursor: Cursor, target: Qualifiers, values: Qualifiers, ends: Callable[[Cursor], bool], what: str
) -> tuple[Assignment, ...]:
    """``column = expression, …`` up to where ``ends`` says so."""
    found: list[Assignment] = []
    while True:
        parts = cursor.name()
        if not cursor.sees_symbol(TokenType.EQ):
            raise cursor.error(f"'=' is expected after {'.'.join(parts)}")
        cursor.at += 1
        value = cursor.until(lambda c: c.sees_symbol(TokenType.COMMA) or ends(c))
        column = target.column(parts)
        if any(one.column == column for one in found):
            raise BadInputError(f"{what} assigns {'.'.join(column)} twice", context={"column": ".".join(column)})
        found.append(Assignment(column, values.expression(value, f"{what} {'.'.join(column)}")))
        if not cursor.sees_symbol(TokenType.COMMA):
            return tuple(found)
        cursor.at += 1


def parse_assignments(text: str, what: str) -> tuple[Assignment, ...]:
    """``column = expression, …`` as a text of its own."""
    cursor, names = Cursor(text), Qualifiers({})
    found = assignments_of(cursor, names, names, lambda _: False, what)
    cursor.expect_end()
    return found
