"""INSERT, DELETE, UPDATE and MERGE in Spark's dialect, and Iceberg's ALTER TABLE … PARTITION FIELD, from text.

sqlglot parses the outline of a statement (see ``outline``); this module turns its AST into ``statements``. Written by
hand is what sqlglot does not parse: ALTER TABLE … PARTITION FIELD, of which sqlglot makes an opaque ``Command``, and
``WITH SCHEMA EVOLUTION``, which it rejects.

Fail-safe: a clause that is not understood here is refused in one line that names it; nothing of a statement is ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyiceberg.transforms import parse_transform
from sqlglot import TokenType, exp

from floeplan.dml.assign import SubqueryCondition
from floeplan.dml.merge.compile import WhenText
from floeplan.errors import BadInputError
from floeplan.partition.evolution import AddField, DropField, SpecChange, Term, replace_field
from floeplan.sql_text import statements as parsed
from floeplan.sql_text.outline import Outline, outline_of
from floeplan.sql_text.statements import SOURCE, TARGET, TableName, target_name
from floeplan.sql_text.tokens import (
    Cursor,
    Piece,
    Qualifiers,
    expression_text,
    has_subquery,
    qualifier_length,
    qualifiers_of,
    quoted,
    refuse_parameters,
)
from floeplan.text import excerpt, one_line

_MATCHED, _NOT_MATCHED = "WHEN MATCHED", "WHEN NOT MATCHED"
_NOT_MATCHED_BY_SOURCE = "WHEN NOT MATCHED BY SOURCE"
_READS = ("SHOW", "DESCRIBE", "DESC")


def parse_statement(text: str) -> parsed.Statement:
    """Parse one statement that changes a table.

    Raises:
        BadInputError: The statement is of another kind, or cannot be parsed.
    """
    cursor = Cursor(text)
    first = cursor.tokens[0].text.upper()
    match first:
        case "INSERT" | "WITH":
            return _insert(cursor)
        case "DELETE":
            return _delete(cursor)
        case "UPDATE":
            return _update(outline_of(cursor))
        case "MERGE":
            return _merge(cursor)
        case "ALTER":
            return _alter(cursor)
    if first in _READS:
        raise BadInputError(
            f"{first} is not supported; use 'floeplan inspect TABLE' or a metadata table: SELECT * FROM db.t.snapshots",
            context={"statement": first},
        )
    raise BadInputError(
        f"{first} is not supported; supported are queries, INSERT, DELETE, UPDATE, MERGE, CREATE TABLE, "
        f"ALTER TABLE … PARTITION FIELD and CALL: {excerpt(one_line(text))}",
        context={"statement": first},
    )


def parse_assignments(text: str, what: str) -> dict[str, object]:
    """Parse ``column = expression, …``; ``what`` names the option it comes from."""
    outline = outline_of(Cursor(f"UPDATE t SET {text}"))
    _refuse_other_clauses(outline.tree, what, "this", "expressions")
    return _assignments(outline, _set_pairs(outline.tree), {}, {}, what)


def _insert(cursor: Cursor) -> parsed.Insert:
    """``[WITH …] INSERT …``: common table expressions before INSERT become part of the query."""
    common_tables = ""
    if cursor.sees("WITH"):
        common_tables = cursor.until(lambda c: c.sees("INSERT")).text + " "
        if cursor.done:
            raise BadInputError("WITH is not followed by INSERT", context={"statement": "WITH"})
    if cursor.sees("INSERT", "WITH", "SCHEMA", "EVOLUTION"):
        raise BadInputError("INSERT WITH SCHEMA EVOLUTION is not supported; add the columns first")
    outline = outline_of(cursor)
    tree = outline.tree
    _refuse_other_clauses(tree, "INSERT", "this", "overwrite", "by_name", "where", "expression")
    if isinstance(tree.this, exp.Directory):
        raise BadInputError("INSERT OVERWRITE DIRECTORY writes no table; use 'floeplan scan TABLE -o FILE.parquet'")

    # The table, its column list and its PARTITION clause.
    has_list = isinstance(tree.this, exp.Schema)
    table_node = tree.this.this if has_list else tree.this
    table, alias = _target(table_node, "INSERT", "partition")
    if alias is not None:
        raise BadInputError(f"INSERT takes no alias: {alias}")
    columns: list[str] = []
    for node in tree.this.expressions if has_list else ():
        if not isinstance(node, exp.Identifier):
            raise BadInputError(f"INSERT takes names of top-level columns, not {node.sql('spark')}")
        if node.name in columns:
            raise BadInputError(f"INSERT names {node.name} twice", context={"column": node.name})
        columns.append(node.name)
    partition = []
    clause = table_node.args.get("partition")
    for node in () if clause is None else clause.expressions:
        column, value = (node.this, outline.piece(node.expression)) if isinstance(node, exp.EQ) else (node, None)
        path = _path(column)
        if path is None or len(path) > 1 or (isinstance(node, exp.EQ) and value is None):
            raise BadInputError(f"PARTITION takes column or column = value, not {node.sql('spark')}")
        partition.append((path[0], value.text if value else None))

    # REPLACE WHERE, and the query.
    overwrite, where = bool(tree.args.get("overwrite")), outline.piece(tree.args.get("where"))
    if where is not None and overwrite:
        raise BadInputError("INSERT OVERWRITE takes no REPLACE WHERE; use INSERT INTO … REPLACE WHERE")
    query = outline.piece(tree.expression.expressions[0])
    if query is None:
        raise BadInputError("INSERT needs a query: SELECT …, VALUES … or TABLE …")
    return parsed.Insert(
        table,
        common_tables + query.text,
        overwrite,
        tuple(columns) if has_list else None,
        bool(tree.args.get("by_name")),
        tuple(partition),
        None if where is None else expression_text(where, qualifiers_of((table.parts, None, "")), "REPLACE WHERE"),
    )


def _delete(cursor: Cursor) -> parsed.Delete:
    if not cursor.sees("DELETE", "FROM"):  # optional for sqlglot, required by Spark
        raise cursor.error("DELETE FROM is expected")
    outline = outline_of(cursor)
    _refuse_other_clauses(outline.tree, "DELETE", "this", "where")
    table, alias = _target(outline.tree.this, "DELETE")
    return parsed.Delete(table, _condition(outline, table, alias, "DELETE"))


def _update(outline: Outline) -> parsed.Update:
    _refuse_other_clauses(outline.tree, "UPDATE", "this", "expressions", "where")
    table, alias = _target(outline.tree.this, "UPDATE")
    names = qualifiers_of((table.parts, alias, ""))
    assignments = _assignments(outline, _set_pairs(outline.tree), names, names, "UPDATE SET")
    return parsed.Update(table, assignments, _condition(outline, table, alias, "UPDATE"))


def _merge(cursor: Cursor) -> parsed.Merge:
    if cursor.sees("MERGE", "WITH", "SCHEMA", "EVOLUTION"):
        raise BadInputError("MERGE WITH SCHEMA EVOLUTION is not supported; add the columns first")
    outline = outline_of(cursor)
    tree = outline.tree
    _refuse_other_clauses(tree, "MERGE", "this", "using", "on", "whens")
    table, alias = _target(tree.this, "MERGE")
    source: str | TableName
    if (query := outline.piece(tree.args["using"])) is not None:
        source = query.text
    else:
        source = TableName(_table_parts(tree.args["using"], "MERGE"))
    source_alias = tree.args["using"].args.get("alias")
    source_parts = source.parts if isinstance(source, TableName) else ()
    target = (table.parts, alias, TARGET)
    both = qualifiers_of(target, (source_parts, source_alias.name if source_alias else None, SOURCE))

    condition = outline.piece(tree.args.get("on"))
    if condition is None:
        raise BadInputError("MERGE needs a condition: MERGE INTO … USING … ON condition")
    on = expression_text(condition, both, "the condition of MERGE")
    clauses: dict[str, list[WhenText]] = {_MATCHED: [], _NOT_MATCHED: [], _NOT_MATCHED_BY_SOURCE: []}
    for node in tree.args["whens"].expressions:
        _refuse_other_clauses(node, "WHEN", "matched", "source", "condition", "then")
        not_matched = _NOT_MATCHED_BY_SOURCE if node.args.get("source") else _NOT_MATCHED
        kind = _MATCHED if node.args.get("matched") else not_matched
        if clauses[kind] and clauses[kind][-1].condition is None:
            raise BadInputError(f"{kind}: only the last clause of a kind may be without a condition")
        piece = outline.piece(node.args.get("condition"))
        also = None if piece is None else expression_text(piece, both, f"the condition of {kind}")
        clauses[kind].append(_when(outline, kind, node.args["then"], also, qualifiers_of(target), both))
    return parsed.Merge(
        table,
        source,
        f"({on})" if on.isidentifier() else on,  # a bare name is a boolean column; unquoted it would name a join key
        tuple(clauses[_MATCHED]),
        tuple(clauses[_NOT_MATCHED]),
        tuple(clauses[_NOT_MATCHED_BY_SOURCE]),
        tuple(column.name for column in source_alias.columns) or None if source_alias else None,
    )


def _when(
    outline: Outline, kind: str, node: exp.Expr, condition: str | None, target: Qualifiers, both: Qualifiers
) -> WhenText:
    """A WHEN clause: its condition, and what it does after THEN."""
    if kind == _NOT_MATCHED:
        if not isinstance(node, exp.Insert):
            raise BadInputError(f"{kind} takes INSERT")
        if isinstance(node.this, exp.Star):
            return WhenText(condition)
        columns, values = (part.expressions if part else [] for part in (node.this, node.expression))
        if len(columns) != len(values):
            raise BadInputError(f"{kind}: INSERT names {len(columns)} columns and has {len(values)} values")
        pairs = list(zip(columns, values, strict=True))
        return WhenText(condition, _assignments(outline, pairs, target, both, f"{kind}: INSERT"))
    if isinstance(node, exp.Var) and node.name.upper() == "DELETE":
        return WhenText(condition, deletes=True)
    if not isinstance(node, exp.Update):
        raise BadInputError(f"{kind} takes UPDATE SET or DELETE")
    if kind == _MATCHED and [type(one) for one in node.expressions] == [exp.Star]:
        return WhenText(condition)
    return WhenText(condition, _assignments(outline, _set_pairs(node), target, both, f"{kind}: UPDATE SET"))


# What statements have in common: the target, assignments, and the condition after WHERE.


def _refuse_other_clauses(node: exp.Expr, what: str, *understood: str) -> None:
    """Refuse clauses of other dialects that sqlglot accepts, such as RETURNING or LIMIT."""
    for clause, value in node.args.items():
        if value and clause not in understood:
            raise BadInputError(f"{what} with {clause.strip('_').upper()} is not supported", context={"clause": clause})


def _target(node: exp.Expr, what: str, *understood: str) -> tuple[TableName, str | None]:
    """The table that a statement changes, and its alias."""
    parts = _table_parts(node, what, *understood)
    alias = node.args.get("alias")
    if alias is not None and alias.columns:
        raise BadInputError(f"{what} takes no column names after the alias of its table")
    return target_name(parts), alias.name if alias else None


def _table_parts(node: exp.Expr, what: str, *understood: str) -> tuple[str, ...]:
    if not isinstance(node, exp.Table) or not all(isinstance(part, exp.Identifier) for part in node.parts):
        raise BadInputError(f"{what} needs the name of a table, not {node.sql('spark')}")
    _refuse_other_clauses(node, f"{what}: a table", "this", "db", "catalog", "alias", *understood)
    return tuple(part.name for part in node.parts)


def _path(node: exp.Expr) -> tuple[str, ...] | None:
    """The parts of a column's name; ``None`` for any other node."""
    parts = node.parts if isinstance(node, exp.Column | exp.Dot) else []
    if not parts or not all(isinstance(part, exp.Identifier) for part in parts):
        return None
    return tuple(part.name for part in parts)


def _set_pairs(update: exp.Expr) -> list[tuple[exp.Expr, exp.Expr | None]]:
    """Column and value of each assignment after SET."""
    return [(node.this, node.expression) if isinstance(node, exp.EQ) else (node, None) for node in update.expressions]


def _assignments(
    outline: Outline,
    pairs: Sequence[tuple[exp.Expr, exp.Expr | None]],
    target: Qualifiers,
    values: Qualifiers,
    what: str,
) -> dict[str, object]:
    """The expression of each assigned column, by its quoted name without the target's qualifier."""
    found: dict[str, object] = {}
    for left, right in pairs:
        path, piece = _path(left), outline.piece(right)
        if path is None or piece is None:
            raise BadInputError(f"{what} takes column = expression, not {left.sql('spark')}")
        column = path[qualifier_length(path, target) :]
        name, key = ".".join(column), quoted(*column)
        if key in found:
            raise BadInputError(f"{what} assigns {name} twice", context={"column": name})
        found[key] = expression_text(piece, values, f"{what} {name}")
    if not found:
        raise BadInputError(f"{what} needs at least one column = expression")
    return found


def _condition(outline: Outline, table: TableName, alias: str | None, what: str) -> str | SubqueryCondition | None:
    """The condition after WHERE, which may have subqueries; ``None`` without one.

    Spark resolves the names inside a subquery, its own tables first and the changed table after them, so the text of
    such a condition stays as it is. Fail-safe: files are planned only with the conjuncts that have no subquery.
    """
    where = outline.tree.args.get("where")
    if where is None:
        return None
    piece, names, what = outline.piece(where.this), qualifiers_of((table.parts, alias, "")), f"the condition of {what}"
    if piece is None:
        raise BadInputError(f"{what} cannot be parsed")
    if not has_subquery(piece):
        return expression_text(piece, names, what)
    refuse_parameters(piece, what)
    plain = [expression_text(part, names, what) for part in _conjuncts(piece.text) if not has_subquery(part)]
    return SubqueryCondition(piece.text, " AND ".join(plain) or "TRUE", alias or table.parts[-1])


def _conjuncts(text: str) -> Iterator[Piece]:
    """The conjuncts of a condition as written; a condition with OR at its top is one conjunct."""
    cursor = Cursor(text)
    open_betweens = 0

    def ends(at: Cursor) -> bool:
        nonlocal open_betweens
        if at.sees("BETWEEN"):
            open_betweens += 1
        elif at.sees("AND") and open_betweens:  # the AND of BETWEEN … AND …
            open_betweens -= 1
        else:
            return at.sees("AND") or at.sees("OR")
        return False

    parts = []
    while not cursor.done:
        parts.append(cursor.until(ends))
        if cursor.sees("OR"):
            yield cursor.piece(0, len(cursor.tokens))
            return
        cursor.at += 1
    yield from parts


# ALTER TABLE … PARTITION FIELD, with the transforms of Iceberg's Spark SQL extensions:
#
#   ADD PARTITION FIELD bucket(16, id) [AS name]
#   DROP PARTITION FIELD name | transform
#   REPLACE PARTITION FIELD name | transform WITH transform [AS name]

_UNARY = {name: name for name in ("identity", "year", "month", "day", "hour")}
_UNARY |= {"years": "year", "months": "month", "days": "day", "date": "day", "hours": "hour", "date_hour": "hour"}
"""Iceberg's transforms without a parameter, by their names in Spark."""


def _alter(cursor: Cursor) -> parsed.AlterPartitioning:
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
        changes = (AddField(_term(cursor), cursor.word() if cursor.accept("AS") else None),)
    elif cursor.accept("DROP", "PARTITION", "FIELD"):
        changes = (DropField(_term(cursor)),)
    elif cursor.accept("REPLACE", "PARTITION", "FIELD"):
        replaced = _term(cursor)
        if not cursor.accept("WITH"):
            raise cursor.error("WITH is expected")
        changes = replace_field(replaced, _term(cursor), cursor.word() if cursor.accept("AS") else None)
    else:
        raise unsupported
    if not cursor.done:
        raise cursor.error("the statement should end here")
    return parsed.AlterPartitioning(table, changes)


def parse_term(text: str) -> Term:
    """Parse a partition transform: ``days(ts)``, ``bucket(16, id)``, ``region``."""
    cursor = Cursor(text)
    term = _term(cursor)
    if not cursor.done:
        raise cursor.error("the statement should end here")
    return term


def _term(cursor: Cursor) -> Term:
    name = cursor.name()
    if not cursor.sees_symbol(TokenType.L_PAREN):
        return Term(name)
    function = ".".join(name).lower()
    arguments = [piece.text for piece in cursor.items()]
    # Both orders are in use: bucket(16, id) is Iceberg's, truncate(name, 4) an older form of its Spark extensions.
    *parameters, column = sorted(arguments, key=lambda argument: not argument.isdecimal()) or [""]
    if function in _UNARY and len(arguments) == 1:
        transform = _UNARY[function]
    elif function in ("bucket", "truncate") and len(arguments) == 2:
        if not parameters[0].isdecimal() or not 0 < int(parameters[0]) < 2**31:
            raise BadInputError(f"{function} takes a whole number above zero, not {parameters[0]!r}")
        transform = f"{function}[{int(parameters[0])}]"
    else:
        known = "identity, years, months, days, hours, bucket(n, column), truncate(n, column)"
        raise BadInputError(
            f"{function}({', '.join(arguments)}) is not a partition transform; supported: {known}",
            context={"transform": function},
        )
    of_column = Cursor(column)
    path = of_column.name()
    if not of_column.done:
        raise BadInputError(f"{column!r} is not the name of a column")
    return Term(path, parse_transform(transform))
