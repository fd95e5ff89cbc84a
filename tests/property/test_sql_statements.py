"""MERGE, UPDATE and DELETE statements of any form are parsed back to their source."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floeplan.dml.merge.compile import WhenText
from floeplan.errors import BadInputError
from floeplan.sql_text.parse import parse_statement
from floeplan.sql_text.statements import Delete, Merge, TableName, Update

pytestmark = pytest.mark.property

WORDS = (
    "id",
    "v",
    "when",
    "matched",
    "then",
    "set",
    "values",
    "source",
    "target",
    "end",
    "date",
    "ünï",
    "a b",
    "x.y",
    "1st",
)
NAMES = st.sampled_from(WORDS)
ALIASES = st.sampled_from(("t", "tgt", "when", "source", "target", "Ü", "a b"))


@dataclass(frozen=True)
class Side:
    """A column of the target or of the source."""

    is_target: bool
    column: str


Part = str | Side
"""Literal text of an expression, or a qualified column."""


def quoted(name: str) -> str:
    return f"`{name}`"


def columns(sides: st.SearchStrategy[bool]) -> st.SearchStrategy[list[Part]]:
    return st.builds(lambda is_target, name: [Side(is_target, name)], sides, NAMES)


LITERALS: st.SearchStrategy[list[Part]] = st.sampled_from(
    ["1", "2.5e3", "'it''s WHEN MATCHED THEN, ('", "NULL", "DATE '2024-01-01'", "3L", "X'0A'", "`free`", "`free`.f"]
).map(lambda text: [text])


def expressions(sides: st.SearchStrategy[bool]) -> st.SearchStrategy[list[Part]]:
    def larger(inner: st.SearchStrategy[list[Part]]) -> st.SearchStrategy[list[Part]]:
        two = st.tuples(inner, inner)
        return st.one_of(
            two.map(lambda p: [*p[0], " + ", *p[1]]),
            two.map(lambda p: ["coalesce(", *p[0], ", ", *p[1], ")"]),
            two.map(lambda p: ["CASE WHEN ", *p[0], " THEN ", *p[1], " ELSE 0 END"]),
            two.map(lambda p: ["(", *p[0], " /* THEN */ AND\n ", *p[1], ")"]),
            inner.map(lambda p: ["transform(array(", *p, "), x -> x + 1)[0]"]),
        )

    return st.recursive(st.one_of(LITERALS, columns(sides)), larger, max_leaves=4)


BOTH = expressions(st.booleans())


def written(parts: list[Part], target: str, source: str) -> str:
    aliases = {True: target, False: source}
    return "".join(
        f"{quoted(aliases[part.is_target])}.{quoted(part.column)}" if isinstance(part, Side) else part for part in parts
    )


def meant(parts: list[Part]) -> str:
    sides = {True: "target", False: "source"}
    return "".join(
        f"{sides[part.is_target]}.{quoted(part.column)}" if isinstance(part, Side) else part for part in parts
    )


Assigned = list[tuple[str, list[Part]]]
ASSIGNED: st.SearchStrategy[Assigned] = st.lists(
    st.tuples(NAMES, BOTH), min_size=1, max_size=3, unique_by=lambda p: p[0]
)


@dataclass(frozen=True)
class When:
    """A clause: its kind, condition and action; an assignment of ``None`` means ``*``."""

    kind: str
    condition: list[Part] | None
    action: str
    assigned: Assigned | None = None


def whens(kind: str, actions: tuple[str, ...], star: bool) -> st.SearchStrategy[list[When]]:
    assigned = st.one_of(st.none(), ASSIGNED) if star else ASSIGNED
    one = st.builds(When, st.just(kind), BOTH, st.sampled_from(actions), assigned)
    last = st.builds(When, st.just(kind), st.one_of(st.none(), BOTH), st.sampled_from(actions), assigned)
    return st.tuples(st.lists(one, max_size=2), st.lists(last, max_size=1)).map(lambda both: [*both[0], *both[1]])


CLAUSES = st.tuples(
    whens("MATCHED", ("DELETE", "UPDATE"), True),
    whens("NOT MATCHED", ("INSERT",), True),
    whens("NOT MATCHED BY SOURCE", ("DELETE", "UPDATE"), False),
).filter(lambda groups: any(groups))


def clause_text(when: When, target: str, source: str) -> str:
    condition = "" if when.condition is None else f" AND {written(when.condition, target, source)}"
    return f"WHEN {when.kind}{condition} THEN {_action_text(when, target, source)}"


def _action_text(when: When, target: str, source: str) -> str:
    if when.action == "DELETE":
        return "DELETE"
    if when.assigned is None:
        return "UPDATE SET *" if when.action == "UPDATE" else "INSERT *"
    names = [f"{quoted(target)}.{quoted(name)}" for name, _ in when.assigned]
    values = [written(parts, target, source) for _, parts in when.assigned]
    if when.action == "UPDATE":
        return "UPDATE SET " + ", ".join(f"{name} = {value}" for name, value in zip(names, values, strict=True))
    return f"INSERT ({', '.join(names)}) VALUES ({', '.join(values)})"


def clause(when: When) -> WhenText:
    condition = None if when.condition is None else meant(when.condition)
    if when.action == "DELETE":
        return WhenText(condition, deletes=True)
    assigned = when.assigned
    return WhenText(condition, assigned and {quoted(name): meant(parts) for name, parts in assigned})


def condition_of_merge(parts: list[Part]) -> str:
    """A single word would be parsed as a key name."""
    text = meant(parts)
    return f"({text})" if text.isidentifier() else text


@given(
    st.lists(NAMES.filter(lambda name: not name.startswith("branch")), min_size=2, max_size=3),
    st.one_of(st.none(), NAMES),
    st.lists(ALIASES, min_size=2, max_size=2, unique_by=str.lower),
    st.one_of(st.just("SELECT 1 AS id WHERE (TRUE)"), st.lists(NAMES, min_size=1, max_size=3)),
    BOTH,
    CLAUSES,
    st.booleans(),
)
def test_merge_is_read_back(
    table: list[str],
    branch: str | None,
    aliases: list[str],
    source: str | list[str],
    on: list[Part],
    groups: tuple[list[When], list[When], list[When]],
    lower: bool,
) -> None:
    target_alias, source_alias = aliases
    name = ".".join(map(quoted, [*table, *([] if branch is None else [f"branch_{branch}"])]))
    using = f"({source})" if isinstance(source, str) else ".".join(map(quoted, source))
    clauses = [clause_text(when, target_alias, source_alias) for group in groups for when in group]
    start = "merge into" if lower else "MERGE INTO"
    text = (
        f"{start} {name} AS {quoted(target_alias)} USING {using} {quoted(source_alias)} -- a comment\n"
        f"ON {written(on, target_alias, source_alias)} {' '.join(clauses)};"
    )
    assert parse_statement(text) == Merge(
        TableName(tuple(table), branch),
        source if isinstance(source, str) else TableName(tuple(source)),
        condition_of_merge(on),
        *(tuple(clause(when) for when in group) for group in groups),
    )


TARGET_ONLY = expressions(st.just(True))


@given(ALIASES, ASSIGNED, TARGET_ONLY, TARGET_ONLY)
def test_update_and_delete_are_read_back(alias: str, assigned: Assigned, value: list[Part], where: list[Part]) -> None:
    def bare(parts: list[Part]) -> str:
        return "".join(quoted(part.column) if isinstance(part, Side) else part for part in parts)

    sets = ", ".join(f"{quoted(name)} = {written(value, alias, alias)}" for name, _ in assigned)
    condition = written(where, alias, alias)
    assert parse_statement(f"UPDATE db.t AS {quoted(alias)} SET {sets} WHERE {condition}") == Update(
        TableName(("db", "t")), {quoted(name): bare(value) for name, _ in assigned}, bare(where)
    )
    assert parse_statement(f"DELETE FROM db.t {quoted(alias)} WHERE {condition}") == Delete(
        TableName(("db", "t")), bare(where)
    )


VOCABULARY = (
    *(
        "MERGE INTO",
        "INSERT",
        "INTO",
        "OVERWRITE",
        "DELETE FROM",
        "UPDATE",
        "ALTER TABLE",
        "USING",
        "ON",
        "WHEN",
        "NOT",
    ),
    *(
        "MATCHED",
        "BY",
        "SOURCE",
        "THEN",
        "SET",
        "VALUES",
        "PARTITION",
        "FIELD",
        "ADD",
        "DROP",
        "REPLACE",
        "WHERE",
        "AS",
    ),
    *(
        "SELECT",
        "FROM",
        "WITH",
        "NAME",
        "CASE",
        "END",
        "db.t",
        "t",
        "`q r`",
        "1",
        "2L",
        "'s'",
        "(",
        ")",
        ",",
        ".",
        "=",
        "*",
    ),
    *("->", "[", "]", "AND", ";", "-- c\n", "/* c */", "?", "bucket(4, id)"),
)


@given(st.lists(st.sampled_from(VOCABULARY), max_size=14).map(" ".join) | st.text(max_size=30))
def test_any_text_is_a_statement_or_bad_input(text: str) -> None:
    message = refusal(text)
    assert message
    assert "\n" not in message


def refusal(text: str) -> str:
    try:
        parse_statement(text)
    except BadInputError as error:
        return error.message
    return "none"
