"""Compile Spark-SQL text: predicates into the IR, value expressions into what the row evaluator runs.

Rule: every piece between AND, OR and NOT either becomes IR that matches exactly Spark's rows, or stays ``Opaque`` with
a ``CompileError`` that says why. Nothing is dropped. ``LIKE 'a%b'`` becomes both: its prefix for statistics, the whole
for rows.

Fail-safe: an unknown column, a literal that cannot be compared with its column and text that is not a predicate are
errors. Literals without a time zone are in UTC, and so are calendar functions: Spark's session time zone is assumed to
be UTC.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from pyiceberg.types import BooleanType, DecimalType, DoubleType, FloatType, IntegerType, LongType, StringType
from sqlglot import exp

from floeplan.errors import FloeplanError, PredicateSyntaxError, TypeMismatchError, UnsupportedError
from floeplan.predicate import casts
from floeplan.predicate.build import and_, negate, or_
from floeplan.predicate.casts import NeedsRows, Term
from floeplan.predicate.ir import (
    FALSE,
    NULL_PREDICATE,
    TRUE,
    Between,
    Cmp,
    CmpOp,
    Column,
    InList,
    IrExpr,
    IsNaN,
    IsNull,
    Opaque,
    StartsWith,
)
from floeplan.predicate.literals import NULL, Kind, Literal, literal_of
from floeplan.predicate.names import Names, Reference, not_comparable
from floeplan.predicate.rows.arrow_columns import Rows
from floeplan.predicate.rows.expressions import SqlExpression, ValueExpression, evaluate_sql
from floeplan.predicate.rows.intervals import Interval
from floeplan.predicate.rows.nodes import COMPARISONS
from floeplan.predicate.rows.types import described, iceberg_type, sql_type
from floeplan.predicate.spark_text import parse_like
from floeplan.predicate.sql.parse import BoundPiece, parse_piece
from floeplan.predicate.sql.split import (
    BooleanTree,
    Junction,
    Negation,
    Piece,
    compile_plain_piece,
    split_predicate,
    tokenize,
)

_MIRRORED = {CmpOp.LT: CmpOp.GT, CmpOp.LE: CmpOp.GE, CmpOp.GT: CmpOp.LT, CmpOp.GE: CmpOp.LE}
_NO_CONDITION = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.IntDiv, exp.Neg, exp.DPipe, exp.Concat, exp.Interval)


@dataclass(frozen=True, slots=True)
class CompileError:
    """A piece of a predicate that statistics cannot answer; it is evaluated on rows.

    Args:
        kind: The kind of reason, in kebab case.
        message: Why statistics cannot answer the piece.
        text: The piece as written.
        start: Offset of its first character in the SQL text; ``None`` when the predicate was not text.
        end: Offset one past its last character.
    """

    kind: str
    message: str
    text: str
    start: int | None = None
    end: int | None = None

    def __str__(self) -> str:
        return f"{self.text}: {self.message}"

    def to_dict(self) -> dict[str, object]:
        """The JSON form."""
        return {"kind": self.kind, "message": self.message, "text": self.text, "start": self.start, "end": self.end}


def compile_sql(sql: str, names: Names) -> tuple[IrExpr, tuple[CompileError, ...]]:
    """Compile the text of a predicate."""
    errors: list[CompileError] = []
    return _compile(split_predicate(sql), sql, names, errors), tuple(errors)


def compile_value(sql: str, names: Names) -> ValueExpression:
    """Compile the text of an expression of any type."""
    tokens = tokenize(sql)
    if not tokens:
        raise PredicateSyntaxError("an expression is empty; write NULL for no value")
    piece = parse_piece(sql, Piece(tuple(tokens), tokens[0].start, tokens[-1].end + 1), names)
    return ValueExpression(SqlExpression(piece.tree, piece.text), tuple(sorted(piece.references)))


def _compile(tree: BooleanTree, sql: str, names: Names, errors: list[CompileError]) -> IrExpr:
    match tree:
        case Junction(every, operands):
            parts = [_compile(operand, sql, names, errors) for operand in operands]
            return and_(*parts) if every else or_(*parts)
        case Negation(operand):
            return negate(_compile(operand, sql, names, errors))
        case Piece(tokens):
            plain = compile_plain_piece(tokens, names)
            if plain is not None:
                return plain
    piece = parse_piece(sql, tree, names)
    try:
        compiler = _PieceCompiler(piece)
        expr = compiler.condition(piece.tree)
    except FloeplanError as error:
        error.context.setdefault("text", piece.text)
        error.context.setdefault("position", piece.start)
        raise
    errors += compiler.errors
    return expr


class _PieceCompiler:
    """Compiles one bound piece; records at most one ``CompileError``, when the piece stays opaque."""

    def __init__(self, piece: BoundPiece) -> None:
        self.piece = piece
        self.errors: list[CompileError] = []
        self.negated = False

    def condition(self, node: exp.Expr) -> IrExpr:
        """The IR of a boolean node, or the whole piece as ``Opaque``."""
        try:
            return self._condition(node)
        except NeedsRows as reason:
            return self._opaque(str(reason))

    def _condition(self, node: exp.Expr) -> IrExpr:
        if isinstance(node, exp.Paren):
            return self._condition(node.this)
        if isinstance(node, exp.Not):
            return self._negation(node.this)
        if node.args.get("negate"):
            positive = node.copy()
            positive.set("negate", None)
            return self._negation(positive)
        # Without columns: a constant, which the row evaluator computes.
        if not _has_columns(node):
            literal = self._fold(node)
            if literal.kind not in (Kind.BOOLEAN, Kind.NULL):
                raise TypeMismatchError(f"{self.piece.text} is of type {literal.kind}, not a condition")
            return {None: NULL_PREDICATE, True: TRUE, False: FALSE}[literal.value]  # type: ignore[index]
        if type(node) in COMPARISONS:
            return self._comparison(node, CmpOp(COMPARISONS[type(node)]))
        if (handler := _HANDLERS.get(type(node))) is not None:
            return handler(self, node)
        # sqlglot has no node for Spark's isnull() and isnotnull().
        name = node.name.lower() if isinstance(node, exp.Anonymous) and len(node.expressions) == 1 else ""
        if name in ("isnull", "isnotnull"):
            test = self._null_test(node.expressions[0])
            return test if name == "isnull" else negate(test)
        if isinstance(node, _NO_CONDITION):
            raise TypeMismatchError(f"{self.piece.text} is not a condition; compare it with something")
        raise NeedsRows(f"statistics cannot answer {_describe(node)}")

    def _negation(self, positive: exp.Expr) -> IrExpr:
        self.negated = True
        return negate(self._condition(positive))

    def _comparison(self, node: exp.Expr, op: CmpOp) -> IrExpr:
        left, right = node.this, node.expression
        if not _has_columns(left):
            left, right, op = right, left, _MIRRORED.get(op, op)
        if _has_columns(right):
            raise NeedsRows("statistics cannot compare a column with another")
        return casts.compare(self._term(left), op, self._fold(right))

    def _term(self, node: exp.Expr) -> Term:
        """A column, or a column under casts that keep every value and its order."""
        while isinstance(node, exp.Paren):
            node = node.this
        if isinstance(node, exp.Placeholder):
            column = self._column(node)
            return Term(column, column.type)
        if isinstance(node, exp.Cast) and not node.args.get("safe"):
            inner = self._term(node.this)
            target = iceberg_type(sql_type(node.to))
            if target is not None and inner.type == inner.column.type:
                return casts.widened(inner.column, target)
        raise NeedsRows(f"statistics cannot answer {_describe(node)}")

    def _reference(self, node: exp.Placeholder) -> Reference:
        return self.piece.references[int(node.this)]

    def _column(self, node: exp.Placeholder) -> Column:
        reference = self._reference(node)
        column = reference.column
        if column is None:
            raise not_comparable(reference)
        return column

    def _fold(self, node: exp.Expr) -> Literal:
        """The value of an expression without columns."""
        if _has_columns(node):
            raise NeedsRows("statistics cannot compare a column with another")
        try:
            value = evaluate_sql(SqlExpression(node, self.piece.text), Rows(1, _no_columns))
        except UnsupportedError as error:
            raise NeedsRows(error.message) from error
        if isinstance(value, Interval):
            raise TypeMismatchError(f"an interval cannot be compared with a column: {self.piece.text}")
        return _literal_of(value if isinstance(value, pa.Scalar) else value[0])

    def _between(self, node: exp.Between) -> IrExpr:
        term = self._term(node.this)
        low = casts.compare(term, CmpOp.GE, self._fold(node.args["low"]))
        high = casts.compare(term, CmpOp.LE, self._fold(node.args["high"]))
        match low, high:
            case Cmp(column, CmpOp.GE, least), Cmp(_, CmpOp.LE, greatest):
                return Between(column, least, greatest)
        return and_(low, high)

    def _in(self, node: exp.In) -> IrExpr:
        return casts.in_list(self._term(node.this), [self._fold(item) for item in node.expressions])

    def _is(self, node: exp.Is) -> IrExpr:
        if isinstance(node.expression, exp.Null):
            return self._null_test(node.this)
        return casts.compare(self._term(node.this), CmpOp.NULL_SAFE_EQ, self._fold(node.expression))

    def _null_test(self, node: exp.Expr) -> IrExpr:
        inner = node.unnest()
        if isinstance(inner, exp.Placeholder) and self._reference(inner).column is None:
            raise NeedsRows(f"there are no statistics of {self._reference(inner).name} as a whole")
        return IsNull(self._term(node).column)

    def _is_nan(self, node: exp.IsNan) -> IrExpr:
        term = self._term(node.this)
        match term.column.type:
            case FloatType() | DoubleType():
                return IsNaN(term.column)
            case IntegerType() | LongType() | DecimalType():
                return FALSE
            case StringType():
                raise NeedsRows(f"isnan() of the string column {term.column} casts it")
        raise TypeMismatchError(f"column {term.column} is {term.column.type} and never NaN; isnan() needs a number")

    def _boolean_column(self, node: exp.Placeholder) -> IrExpr:
        column = self._column(node)
        if not isinstance(column.type, BooleanType):
            raise TypeMismatchError(f"column {column} is {column.type}, not a condition; compare it with something")
        return Cmp(column, CmpOp.EQ, True)

    def _starts_with(self, node: exp.StartsWith) -> IrExpr:
        column, prefix = self._text_operands(node)
        if prefix is None:
            return NULL_PREDICATE
        return StartsWith(column, prefix) if prefix else InList(column, (), negated=True)

    def _like(self, node: exp.Expr, escape: str = "\\") -> IrExpr:
        column, pattern = self._text_operands(node)
        if pattern is None:
            return NULL_PREDICATE
        like = parse_like(pattern, escape)
        if like.is_plain:
            return Cmp(column, CmpOp.EQ, like.prefix)
        prefix = StartsWith(column, like.prefix) if like.prefix else InList(column, (), negated=True)
        if like.is_prefix:
            return prefix
        reason = "statistics can answer no more of LIKE than its prefix"
        if self.negated or not like.prefix:
            raise NeedsRows(reason)
        return and_(prefix, self._opaque(reason))

    def _escaped_like(self, node: exp.Escape) -> IrExpr:
        if not isinstance(node.this, exp.Like):
            raise NeedsRows(f"statistics cannot answer {_describe(node.this)}")
        self.negated |= bool(node.this.args.get("negate"))
        like = self._like(node.this, str(self._fold(node.expression).value))
        return negate(like) if node.this.args.get("negate") else like

    def _text_operands(self, node: exp.Expr) -> tuple[Column, str | None]:
        """A string column and a constant pattern."""
        if (
            not _has_columns(node.this)
            or _has_columns(node.expression)
            or isinstance(node.expression, exp.Any | exp.All)
        ):
            raise NeedsRows(f"statistics cannot answer {_describe(node)}")
        term, literal = self._term(node.this), self._fold(node.expression)
        if not isinstance(term.type, StringType):
            raise NeedsRows(f"matching the {term.type} column {term.column} as text casts it")
        if literal.kind not in (Kind.STRING, Kind.NULL):
            raise NeedsRows(f"a {literal.kind} as a pattern")
        return term.column, None if literal.value is None else str(literal.value)

    def _opaque(self, reason: str) -> Opaque:
        """The whole piece, to be evaluated on rows."""
        piece = self.piece
        self.errors.append(CompileError("unsupported", reason, piece.text, piece.start, piece.end))
        return Opaque(piece.text, tuple(sorted(piece.references)), SqlExpression(piece.tree, piece.text))


def _has_columns(node: exp.Expr) -> bool:
    return node.find(exp.Placeholder) is not None


def _no_columns(field_id: int) -> pa.Array:
    raise AssertionError(f"a constant reads field {field_id}")


def _describe(node: exp.Expr) -> str:
    if isinstance(node, exp.Case | exp.If):
        return "a CASE or IF"
    if isinstance(node, exp.Cast):
        return f"a cast to {node.to.sql('spark')}"
    if isinstance(node, exp.Func):
        return described(node)
    return "an expression over columns"


def _literal_of(scalar: pa.Scalar) -> Literal:
    """The literal of a scalar; dates and times stay integers, because Python's types cover fewer years."""
    type_ = scalar.type
    if not scalar.is_valid:
        return NULL
    if pt.is_timestamp(type_):
        nanos = scalar.value * (1 if type_.unit == "ns" else 1000)
        return Literal(Kind.TIMESTAMP, nanos, zoned=type_.tz is not None, from_text=True)
    if pt.is_date(type_):
        return Literal(Kind.DATE, scalar.value)
    if pt.is_time(type_):
        return Literal(Kind.TIME, scalar.value * 1000)
    return literal_of(scalar.as_py())


_HANDLERS: dict[type[exp.Expr], Callable[[_PieceCompiler, Any], IrExpr]] = {
    exp.Between: _PieceCompiler._between,
    exp.In: _PieceCompiler._in,
    exp.Is: _PieceCompiler._is,
    exp.NullSafeNEQ: lambda self, node: negate(self._comparison(node, CmpOp.NULL_SAFE_EQ)),
    exp.IsNan: _PieceCompiler._is_nan,
    exp.Placeholder: _PieceCompiler._boolean_column,
    exp.StartsWith: _PieceCompiler._starts_with,
    exp.Like: _PieceCompiler._like,
    exp.Escape: _PieceCompiler._escaped_like,
}
