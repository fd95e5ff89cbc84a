"""Compile Spark-SQL text: predicates into the IR, value expressions into what the row evaluator runs.

::

    text -> sql_parser.split_predicate -> pieces -> column op literal, column IN (literals): plain_sql.compile_plain
                                                 -> everything else: sql_parser.parse_piece, sqlglot's tree
         -> IR, or Opaque with a CompileError

Rule: every piece between AND, OR and NOT either becomes IR that matches exactly Spark's rows, or stays ``Opaque`` with
a ``CompileError`` that says why. Nothing is dropped. ``LIKE 'a%b'`` becomes both: its prefix for statistics, the whole
for rows.

Fail-safe: an unknown column, a literal that cannot be compared with its column and text that is not a predicate are
errors. Literals without a time zone are in UTC, and so are calendar functions: Spark's session time zone is assumed to
be UTC.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.types as pt
from pyiceberg.types import (
    BooleanType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
)
from sqlglot import exp

from floeplan.errors import FloeplanError, PredicateSyntaxError, TypeMismatchError, UnsupportedError
from floeplan.opaque_types import is_opaque, is_variant
from floeplan.predicate import casts
from floeplan.predicate.build import and_, negate, or_
from floeplan.predicate.casts import NeedsRows, Term
from floeplan.predicate.evaluate import BoundsTest
from floeplan.predicate.geometries import BoxBounds, find_extent
from floeplan.predicate.ir import (
    FALSE,
    NULL_PREDICATE,
    TRUE,
    Between,
    Bounded,
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
from floeplan.predicate.plain_sql import compile_plain
from floeplan.predicate.rows.arrow_columns import Rows
from floeplan.predicate.rows.evaluate import SqlExpression, ValueExpression, evaluate_sql
from floeplan.predicate.rows.nodes import COMPARISONS
from floeplan.predicate.rows.types import described, iceberg_type, sql_type, written
from floeplan.predicate.rows.variant_get import Extraction, find_extraction
from floeplan.predicate.spark_text import Interval, LikePattern, parse_like
from floeplan.predicate.sql_parser import (
    BooleanTree,
    BoundPiece,
    Junction,
    Negation,
    Piece,
    parse_piece,
    split_predicate,
    tokenize,
)
from floeplan.predicate.variants import VariantBounds

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
        return asdict(self)


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
        case Piece(_, start, end):
            plain = compile_plain(sql[start:end], names)
            if plain is not None:
                return plain
    piece = parse_piece(sql, tree, names)
    compiler = _PieceCompiler(piece, errors)
    try:
        return compiler.whole(piece.tree)
    except NeedsRows as reason:
        return compiler.opaque(str(reason))
    except FloeplanError as error:
        error.context.setdefault("text", piece.text)
        error.context.setdefault("position", piece.start + 1)
        raise


class _PieceCompiler:
    """Compiles one bound piece; adds at most one ``CompileError``, when the piece stays opaque."""

    def __init__(self, piece: BoundPiece, errors: list[CompileError]) -> None:
        self.piece = piece
        self.errors = errors
        self.negated = False
        self.extraction: Extraction | None = None

    def whole(self, tree: exp.Expr) -> IrExpr:
        """The IR of the piece; of a condition on a variant's field, with the test of the variant's bounds."""
        if (extent := find_extent(tree)) is not None:
            reference = self.piece.references[extent[0]]
            if not str(reference.field.field_type).lower().startswith("geometry"):
                raise TypeMismatchError(f"column {reference.name} is {reference.field.field_type}, not a geometry")
            return self._bounded(reference, tree, BoxBounds(extent[1]))
        found = self.condition(tree)
        if self.extraction is None:
            return found
        field_id, steps = self.extraction.field_id, self.extraction.steps
        type_, reference = iceberg_type(self.extraction.target), self.piece.references[field_id]
        test = None if type_ is None else VariantBounds.of(steps, found, type_, field_id)
        if test is None:
            raise NeedsRows("there are no bounds of the elements of an array in a variant")
        return self._bounded(reference, tree, test)

    def _bounded(self, reference: Reference, tree: exp.Expr, test: BoundsTest) -> Bounded:
        field = reference.field
        assert isinstance(field.field_type, PrimitiveType)
        piece = Opaque(self.piece.text, (field.field_id,), SqlExpression(tree, self.piece.text))
        return Bounded(Column(field.field_id, field.field_type, reference.path), piece, test)

    def condition(self, node: exp.Expr) -> IrExpr:
        """The IR of a boolean node."""
        if isinstance(node, exp.Paren):
            return self.condition(node.this)
        if isinstance(node, exp.Not):
            self.negated = True
            return negate(self.condition(node.this))
        if node.args.get("negate"):
            positive = node.copy()
            positive.set("negate", None)
            self.negated = True
            return negate(self.condition(positive))
        # Without columns: a constant, which the row evaluator computes.
        if not _has_columns(node):
            literal = self._fold(node)
            if literal.kind not in (Kind.BOOLEAN, Kind.NULL):
                raise TypeMismatchError(f"{self.piece.text} is of type {literal.kind}, not a condition")
            return {None: NULL_PREDICATE, True: TRUE, False: FALSE}[literal.value]  # type: ignore[index]
        if type(node) in COMPARISONS:
            return self._comparison(node, CmpOp(COMPARISONS[type(node)]))
        match node:
            case exp.NullSafeNEQ():
                return negate(self._comparison(node, CmpOp.NULL_SAFE_EQ))
            case exp.Between():
                return self._between(node)
            case exp.In():
                return casts.in_list(self._term(node.this), [self._fold(item) for item in node.expressions])
            case exp.Is() if isinstance(node.expression, exp.Null):
                return self._is_null(node.this)
            case exp.Is():
                return casts.compare(self._term(node.this), CmpOp.NULL_SAFE_EQ, self._fold(node.expression))
            case exp.IsNan():
                return self._is_nan(node)
            case exp.Like() | exp.StartsWith():
                return self._like(node)
            case exp.Escape(this=exp.Like() as like):
                negated = bool(like.args.get("negate"))
                self.negated |= negated
                matches = self._like(like, str(self._fold(node.expression).value))
                return negate(matches) if negated else matches
            case exp.Placeholder():
                column = self._column(node)
                if isinstance(column.type, BooleanType):
                    return Cmp(column, CmpOp.EQ, True)
                raise TypeMismatchError(f"column {column} is {column.type}, not a condition; compare it with something")
            case exp.Anonymous(expressions=[operand]) if node.name.lower() in ("isnull", "isnotnull"):
                # sqlglot has no node for these two functions of Spark.
                is_null = self._is_null(operand)
                return is_null if node.name.lower() == "isnull" else negate(is_null)
        if isinstance(node, _NO_CONDITION):
            raise TypeMismatchError(f"{self.piece.text} is not a condition; compare it with something")
        raise NeedsRows(f"statistics cannot answer {_describe(node)}")

    def opaque(self, reason: str) -> Opaque:
        """The whole piece, to be evaluated on rows."""
        piece = self.piece
        self.errors.append(CompileError("unsupported", reason, piece.text, piece.start, piece.end))
        return Opaque(piece.text, tuple(sorted(piece.references)), SqlExpression(piece.tree, piece.text))

    # Operands: a column, perhaps under casts, and constants.

    def _term(self, node: exp.Expr) -> Term:
        """A column, or a column under casts that keep every value and its order."""
        while isinstance(node, exp.Paren):
            node = node.this
        if isinstance(node, exp.Placeholder):
            column = self._column(node)
            return Term(column, column.type)
        try:
            found = find_extraction(node)
        except UnsupportedError as error:
            raise NeedsRows(error.message) from error
        if found is not None and is_variant(self.piece.references[found.field_id].field.field_type):
            type_ = iceberg_type(found.target)
            if type_ is not None:
                self.extraction = found
                return Term(Column(found.field_id, type_, (written(node),)), type_)
        if isinstance(node, exp.Cast) and not node.args.get("safe"):
            inner = self._term(node.this)
            target = iceberg_type(sql_type(node.to))
            if target is not None and inner.type == inner.column.type:
                return casts.widened(inner.column, target)
        raise NeedsRows(f"statistics cannot answer {_describe(node)}")

    def _reference(self, node: exp.Placeholder) -> Reference:
        return self.piece.references[int(node.this)]

    def _column(self, node: exp.Placeholder) -> Column:
        column = self._reference(node).column
        if column is None:
            raise not_comparable(self._reference(node))
        return column

    def _fold(self, node: exp.Expr) -> Literal:
        """The value of an expression without columns."""
        if _has_columns(node):
            raise NeedsRows("statistics cannot compare a column with another")
        try:
            value = evaluate_sql(SqlExpression(node, self.piece.text), Rows(1, dict[int, pa.Array]().__getitem__))
        except UnsupportedError as error:
            raise NeedsRows(error.message) from error
        if isinstance(value, Interval):
            raise TypeMismatchError(f"an interval cannot be compared with a column: {self.piece.text}")
        scalar = value if isinstance(value, pa.Scalar) else value[0]
        # Dates and times stay integers, because Python's types cover fewer years.
        type_ = scalar.type
        if not scalar.is_valid:
            return NULL
        if pt.is_timestamp(type_):
            nanos = scalar.value * (1 if type_.unit == "ns" else 1000)
            return Literal(Kind.TIMESTAMP, nanos, zoned=type_.tz is not None, from_text=True)
        if pt.is_date(type_):
            return Literal(Kind.DATE, scalar.value)
        return Literal(Kind.TIME, scalar.value * 1000) if pt.is_time(type_) else literal_of(scalar.as_py())

    # Conditions.

    def _comparison(self, node: exp.Expr, op: CmpOp) -> IrExpr:
        left, right = node.this, node.expression
        if not _has_columns(left):
            left, right, op = right, left, _MIRRORED.get(op, op)
        if _has_columns(right):
            raise NeedsRows("statistics cannot compare a column with another")
        return casts.compare(self._term(left), op, self._fold(right))

    def _between(self, node: exp.Between) -> IrExpr:
        term = self._term(node.this)
        low = casts.compare(term, CmpOp.GE, self._fold(node.args["low"]))
        high = casts.compare(term, CmpOp.LE, self._fold(node.args["high"]))
        match low, high:
            case Cmp(column, CmpOp.GE, least), Cmp(_, CmpOp.LE, greatest):
                return Between(column, least, greatest)
        return and_(low, high)

    def _is_null(self, node: exp.Expr) -> IrExpr:
        inner = node.unnest()
        if isinstance(inner, exp.Placeholder) and (reference := self._reference(inner)).column is None:
            if is_opaque(type_ := reference.field.field_type) and isinstance(type_, PrimitiveType):
                # Variants and geometries are not compared, but their nulls are counted.
                return IsNull(Column(reference.field.field_id, type_, reference.path))
            raise NeedsRows(f"there are no statistics of {reference.name} as a whole")
        return IsNull(self._term(node).column)

    def _is_nan(self, node: exp.IsNan) -> IrExpr:
        column = self._term(node.this).column
        match column.type:
            case FloatType() | DoubleType():
                return IsNaN(column)
            case IntegerType() | LongType() | DecimalType():
                return FALSE
            case StringType():
                raise NeedsRows(f"isnan() of the string column {column} casts it")
        raise TypeMismatchError(f"column {column} is {column.type} and never NaN; isnan() needs a number")

    def _like(self, node: exp.Expr, escape: str = "\\") -> IrExpr:
        """LIKE and startswith() with a constant pattern: equality, a prefix, or a prefix and the whole on rows."""
        pattern = node.expression
        if not _has_columns(node.this) or _has_columns(pattern) or isinstance(pattern, exp.Any | exp.All):
            raise NeedsRows(f"statistics cannot answer {_describe(node)}")
        term, literal = self._term(node.this), self._fold(pattern)
        if not isinstance(term.type, StringType):
            raise NeedsRows(f"matching the {term.type} column {term.column} as text casts it")
        if literal.kind is Kind.NULL:
            return NULL_PREDICATE
        if literal.kind is not Kind.STRING:
            raise NeedsRows(f"a {literal.kind} as a pattern")
        text, column = str(literal.value), term.column
        like = (
            parse_like(text, escape) if isinstance(node, exp.Like) else LikePattern((text, None) if text else (None,))
        )
        if like.is_plain:
            return Cmp(column, CmpOp.EQ, like.prefix)
        prefix = StartsWith(column, like.prefix) if like.prefix else InList(column, (), negated=True)
        if like.is_prefix:
            return prefix
        reason = "statistics can answer no more of LIKE than its prefix"
        if self.negated or not like.prefix:
            raise NeedsRows(reason)
        return and_(prefix, self.opaque(reason))


def _has_columns(node: exp.Expr) -> bool:
    return node.find(exp.Placeholder) is not None


def _describe(node: exp.Expr) -> str:
    if isinstance(node, exp.Case | exp.If):
        return "a CASE or IF"
    if isinstance(node, exp.Cast):
        return f"a cast to {node.to.sql('spark')}"
    return described(node) if isinstance(node, exp.Func) else "an expression over columns"
