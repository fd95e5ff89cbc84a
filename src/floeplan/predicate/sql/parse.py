"""Parse one piece with sqlglot and bind its columns; the only module that relies on sqlglot's grammar.

sqlglot accepts more than Spark does, and binds ``IS``, ``IN``, ``LIKE`` and ``BETWEEN`` tighter than ``=`` where Spark
does not. Fail-safe: a comparison directly inside another comparison must be parenthesised, so that both readings
agree. Subqueries, aggregates, windows and parameters are rejected, and so is every function whose value depends on
when or where it runs (``now()``, ``rand()``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel, ParseError

from floeplan.errors import BadInputError
from floeplan.predicate.names import Names, Reference
from floeplan.predicate.rows.nodes import COMPARISONS
from floeplan.predicate.sql.split import Piece, syntax_error
from floeplan.text import excerpt

MAX_TREE_DEPTH = 150
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
_TAKES_CONDITIONS = (exp.Not, exp.And, exp.Or, exp.Escape)
_REJECTED: tuple[tuple[tuple[type[exp.Expr], ...], str], ...] = (
    ((exp.Query, exp.Subquery), "a subquery"),
    ((exp.Window,), "a window function"),
    ((exp.AggFunc,), "an aggregate function"),
    ((exp.Placeholder, exp.Parameter, exp.SessionParameter), "a parameter"),
    ((exp.Star,), "*"),
)
_NONDETERMINISTIC = (
    exp.Rand,
    exp.Randn,
    exp.Uuid,
    exp.CurrentDate,
    exp.CurrentTime,
    exp.CurrentTimestamp,
    exp.CurrentUser,
)
_NONDETERMINISTIC_NAMES = frozenset(
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
    """A parsed piece: its text, its tree with placeholders of field ids for columns, and the fields they refer to."""

    text: str
    start: int
    end: int
    tree: exp.Expr
    references: dict[int, Reference] = field(default_factory=dict)


def parse_piece(sql: str, piece: Piece, names: Names) -> BoundPiece:
    """Parse and bind one piece."""
    text = sql[piece.start : piece.end]
    try:
        tree = _parse(sql, piece)
        if _depth(tree) > MAX_TREE_DEPTH:
            raise RecursionError
        _reject_unsupported(tree, text)
        if _is_ambiguous(tree):
            raise syntax_error(
                sql, piece.start, "one condition is inside another; put parentheses around the inner one"
            )
        references: dict[int, Reference] = {}
        return BoundPiece(text, piece.start, piece.end, _bind(tree, names, references), references)
    except RecursionError:
        raise BadInputError(f"the predicate is nested too deeply to be evaluated: {excerpt(text)}") from None


def _parse(sql: str, piece: Piece) -> exp.Expr:
    parser = Spark().parser(error_level=ErrorLevel.IMMEDIATE)
    try:
        trees = parser.parse_into(exp.Condition, list(piece.tokens), sql)
    except ParseError as error:
        raise syntax_error(sql, _position(error, sql, piece), "this is not an expression Spark accepts") from error
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        # sqlglot takes the arguments of some functions for granted and fails on calls such as date_trunc().
        raise syntax_error(sql, piece.start, "this is not an expression Spark accepts") from error
    tree = trees[0] if len(trees) == 1 else None  # sqlglot skips a leading ELSE and returns no tree
    if tree is None or isinstance(tree, exp.Tuple):
        raise syntax_error(sql, piece.start, "a condition is expected")
    return tree


def _position(error: ParseError, sql: str, piece: Piece) -> int:
    """The offset of a parse error, from the line and column of the innermost error."""
    cause = error.__cause__ if isinstance(error.__cause__, ParseError) else error
    details = cause.errors[0] if cause.errors else {}
    line, column = details.get("line"), details.get("col")
    if not isinstance(line, int) or not isinstance(column, int):
        return piece.start
    line_start = sum(len(row) for row in sql.splitlines(keepends=True)[: line - 1])
    highlighted = len(str(details.get("highlight") or " "))
    return min(max(line_start + column - highlighted, piece.start), max(piece.end - 1, piece.start))


def _depth(tree: exp.Expr) -> int:
    """The depth of a tree, without recursion."""
    deepest, level = 0, [tree]
    while level:
        deepest += 1
        level = [child for node in level for child in node.iter_expressions()]
    return deepest


def _reject_unsupported(tree: exp.Expr, text: str) -> None:
    """Raise for what no predicate on a table may contain."""
    for node in tree.walk():
        for kinds, what in _REJECTED:
            if isinstance(node, kinds):
                raise BadInputError(f"{what} cannot be used in a predicate on a table: {text}", context={"text": text})
        named = isinstance(node, exp.Anonymous) and node.name.lower() in _NONDETERMINISTIC_NAMES
        if named or isinstance(node, _NONDETERMINISTIC):
            raise BadInputError(
                f"{node.sql('spark')} changes with every run; write its value as a literal: {text}",
                context={"text": text},
            )


def _is_ambiguous(tree: exp.Expr) -> bool:
    """Whether Spark and sqlglot may group the operators of a tree differently."""
    for node in tree.walk():
        # A comparison whose operand is a comparison without parentheses: ``a = b IN (1, 2)``.
        compares = isinstance(node, (*_CONDITIONS, exp.Binary)) and not isinstance(node, _TAKES_CONDITIONS)
        if compares and any(isinstance(child, _CONDITIONS) for child in node.iter_expressions()):
            return True
        # ``||`` has the precedence of ``+`` in Spark and a lower one in sqlglot.
        if isinstance(node, exp.DPipe | exp.Add | exp.Sub):
            other = (exp.Add, exp.Sub) if isinstance(node, exp.DPipe) else (exp.DPipe,)
            if isinstance(node.this, other) or isinstance(node.expression, other):
                return True
    return False


def _bind(tree: exp.Expr, names: Names, references: dict[int, Reference]) -> exp.Expr:
    """Replace every column by a placeholder with its field id; the name stays in its metadata, for messages."""

    def bind(node: exp.Expr) -> exp.Expr:
        path = _path(node)
        if path is None:
            return node
        around = node.find_ancestor(exp.Lambda)
        if around is not None and any(variable.name == path[0] for variable in around.expressions):
            return node  # the variable of a lambda, not a column
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
