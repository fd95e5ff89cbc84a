"""One piece of a SQL predicate as a tree whose columns are bound: the only place that trusts the SQL parser.

The parser is more lenient than Spark, and binds ``IS``, ``IN``, ``LIKE`` and ``BETWEEN`` tighter than ``=`` where Spark
does not. Fail-safe: a comparison directly inside another one is refused until it is parenthesised, so both readings
agree; subqueries, aggregates, windows and parameters are refused; so is everything whose value depends on when or
where it is asked (``now()``, ``rand()``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import Token, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel, ParseError

from floeplan.errors import BadInputError, PredicateSyntaxError
from floeplan.predicate.names import Names, Reference
from floeplan.predicate.sql.fast_path import put_long_list, take_long_list
from floeplan.predicate.sql.skeleton import Piece, syntax_error
from floeplan.text import excerpt

MAX_TREE_DEPTH = 150
COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
}
_CONDITIONS = (
    *COMPARISONS,
    exp.NullSafeNEQ,
    exp.Is,
    exp.In,
    exp.Between,
    exp.Like,
    exp.ILike,
    exp.RegexpLike,
    exp.Escape,
    exp.Not,
    exp.And,
    exp.Or,
)
_JOINS_CONDITIONS = (exp.Not, exp.And, exp.Or, exp.Escape)
_REFUSED: tuple[tuple[tuple[type[exp.Expr], ...], str], ...] = (
    ((exp.Query, exp.Subquery), "a subquery"),
    ((exp.Window,), "a window function"),
    ((exp.AggFunc,), "an aggregate function"),
    ((exp.Placeholder, exp.Parameter, exp.SessionParameter), "a parameter"),
    ((exp.Star,), "*"),
)
_CHANGING = (exp.Rand, exp.Randn, exp.Uuid, exp.CurrentDate, exp.CurrentTime, exp.CurrentTimestamp, exp.CurrentUser)
_CHANGING_NAMES = frozenset(
    (
        "now",
        "curdate",
        "localtimestamp",
        "current_timezone",
        "current_catalog",
        "current_database",
        "current_schema",
        "input_file_name",
        "monotonically_increasing_id",
        "spark_partition_id",
        "shuffle",
        "user",
        "session_user",
    )
)


@dataclass(frozen=True, slots=True)
class BoundPiece:
    """A parsed piece: its text, its tree with placeholders of field ids for columns, and what they refer to.

    ``numbers`` are the items of a long list of whole numbers, of which the tree has a zero only.
    """

    text: str
    start: int
    end: int
    tree: exp.Expr
    references: dict[int, Reference] = field(default_factory=dict)
    numbers: tuple[int, ...] = ()


def parse_piece(sql: str, piece: Piece, names: Names) -> BoundPiece:
    """Parse and bind one piece."""
    text = sql[piece.start : piece.end]
    tokens, listed, numbers = take_long_list(piece.tokens, sql)
    try:
        tree = _parsed(sql, piece, tokens)
        if _depth(tree) > MAX_TREE_DEPTH:
            raise RecursionError
        _refuse(tree, text)
        _demand_parentheses(tree, sql, piece)
        references: dict[int, Reference] = {}
        bound = put_long_list(_bound(tree, names, references), listed)
        return BoundPiece(text, piece.start, piece.end, bound, references, numbers)
    except RecursionError:
        raise BadInputError(f"the predicate is nested too deeply to be evaluated: {excerpt(text)}") from None


_PARSER_FAILS = (ValueError, TypeError, AttributeError, LookupError)
"""What comes of functions whose arguments the parser takes for granted, such as ``date_trunc()``."""


def _parsed(sql: str, piece: Piece, tokens: list[Token]) -> exp.Expr:
    parser = Spark().parser(error_level=ErrorLevel.IMMEDIATE)
    try:
        trees = parser.parse_into(exp.Condition, tokens, sql)
    except ParseError as error:
        raise syntax_error(sql, _position(error, sql, piece), "this is not an expression Spark accepts") from error
    except _PARSER_FAILS as error:
        raise syntax_error(sql, piece.start, "this is not an expression Spark accepts") from error
    tree = trees[0] if len(trees) == 1 else None  # a leading ELSE is passed over: no condition
    if tree is None or isinstance(tree, exp.Tuple):
        raise syntax_error(sql, piece.start, "a condition is expected")
    return tree


def _position(error: ParseError, sql: str, piece: Piece) -> int:
    """Where the parser gave up, from the line and column of the innermost error."""
    cause = error.__cause__ if isinstance(error.__cause__, ParseError) else error
    facts = cause.errors[0] if cause.errors else {}
    line, column = facts.get("line"), facts.get("col")
    if not isinstance(line, int) or not isinstance(column, int):
        return piece.start
    line_start = sum(len(row) for row in sql.splitlines(keepends=True)[: line - 1])
    highlighted = len(str(facts.get("highlight") or " "))
    return min(max(line_start + column - highlighted, piece.start), max(piece.end - 1, piece.start))


def _depth(tree: exp.Expr) -> int:
    deepest, level = 0, [tree]
    while level:
        deepest += 1
        level = [child for node in level for child in node.iter_expressions()]
    return deepest


def _refuse(tree: exp.Expr, text: str) -> None:
    for node in tree.walk():
        for kinds, what in _REFUSED:
            if isinstance(node, kinds):
                raise BadInputError(f"{what} cannot be used in a predicate on a table: {text}", context={"text": text})
        named = isinstance(node, exp.Anonymous) and node.name.lower() in _CHANGING_NAMES
        if named or isinstance(node, _CHANGING):
            raise BadInputError(
                f"{node.sql('spark')} changes with every run; write its value as a literal: {text}",
                context={"text": text},
            )


def _demand_parentheses(tree: exp.Expr, sql: str, piece: Piece) -> None:
    for node in tree.walk():
        joins = isinstance(node, _JOINS_CONDITIONS) or not isinstance(node, (*_CONDITIONS, exp.Binary))
        if not joins and any(isinstance(child, _CONDITIONS) for child in node.iter_expressions()):
            raise _ambiguous(sql, piece)
        if isinstance(node, exp.DPipe | exp.Add | exp.Sub):
            other = (exp.Add, exp.Sub) if isinstance(node, exp.DPipe) else (exp.DPipe,)
            if isinstance(node.this, other) or isinstance(node.expression, other):
                raise _ambiguous(sql, piece)


def _ambiguous(sql: str, piece: Piece) -> PredicateSyntaxError:
    return syntax_error(sql, piece.start, "one condition is inside another; put parentheses around the inner one")


def _bound(tree: exp.Expr, names: Names, references: dict[int, Reference]) -> exp.Expr:
    """The tree with every column replaced by a placeholder of its field id; its name stays for messages."""

    def bind(node: exp.Expr) -> exp.Expr:
        path = _path(node)
        if path is None or _is_lambda_variable(node, path):
            return node
        reference = names.find(path)
        references[reference.field.field_id] = reference
        placeholder = exp.Placeholder(this=str(reference.field.field_id))
        placeholder.meta["name"] = reference.name
        return placeholder

    return tree.transform(bind, copy=False)


def _path(node: exp.Expr) -> tuple[str, ...] | None:
    """The parts of a column name, if the node is one."""
    if isinstance(node, exp.Column):
        return tuple(part.name for part in node.parts)
    if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Identifier):
        parent = _path(node.this)
        return None if parent is None else (*parent, node.expression.name)
    return None


def _is_lambda_variable(node: exp.Expr, path: tuple[str, ...]) -> bool:
    around = node.find_ancestor(exp.Lambda)
    return around is not None and any(variable.name == path[0] for variable in around.expressions)
