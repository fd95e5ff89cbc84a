"""Iceberg expression JSON, as REST clients send it, compiled into the IR.

Two dialects arrive. Java sends literals untyped and in internal units: timestamps as microseconds, dates as days,
decimals and bytes as text. PyIceberg sends ISO text. A term is a name, a reference, or a transform of one. The newer
form of the specification names operands ``child``, ``left`` and ``right``. All of them bind to the same leaves.

**Clients disagree about nulls, NaN and zeros.** For Java ``not-eq``, ``not-in`` and ``not-starts-with`` match nulls,
for PyIceberg only ``not-in`` does, for SQL none does; NaN is above every number for Java and above none for PyIceberg.
-0.0 is below 0.0 for Java, and another value in lists of PyIceberg; for SQL they are equal. The client evaluates its
own semantics on rows, so a plan must hold for all of them: such a row *may* match. It is expressed with an opaque piece
beside the leaf, so that a file with such rows is neither dropped nor proven::

    x != 5    →    x != 5 OR (x IS NULL AND …)
    x > 5     →    x > 5 AND (NOT isnan(x) OR …)

**Residuals are pieces of the filter itself.** The top-level AND is split, and each conjunct of the IR remembers the
piece it comes from. A file's residual is the AND of the pieces that its statistics do not prove, exactly as the client
wrote them: it can parse them again, and they mean to it what they meant. Only infinity, which no client parses, is
expressed by finite numbers.

Fail-safe: a name that two candidate schemas resolve to different columns, a metadata column, and a function that
statistics cannot answer become opaque pieces, which keep every file. What cannot be bound at all is an error.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeAlias

from pyiceberg import types
from pyiceberg.exceptions import ValidationError
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, UnknownTransform, VoidTransform, parse_transform

from floeplan.errors import BadInputError, TypeMismatchError, UnknownColumnError
from floeplan.partition.preimage import transformed
from floeplan.partition.transforms import Transform, can_apply, result_type
from floeplan.predicate import casts
from floeplan.predicate.build import and_, conjuncts, negate, or_
from floeplan.predicate.casts import TEMPORAL_UNIT, NeedsRows, Term
from floeplan.predicate.ir import (
    FALSE,
    TRUE,
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
from floeplan.predicate.literals import checked_text
from floeplan.predicate.names import Names, Reference
from floeplan.rest.literals import beyond_float, finite_form, is_fraction, json_literal, range_form
from floeplan.text import excerpt

Json: TypeAlias = Any
"""What ``json.loads`` returns."""

_NEGATED = {
    "lt": "gt-eq",
    "gt": "lt-eq",
    "eq": "not-eq",
    "in": "not-in",
    "starts-with": "not-starts-with",
    "is-null": "not-null",
    "is-nan": "not-nan",
}
_NEGATED |= {negated: op for op, negated in _NEGATED.items()}
_COMPARISONS = {
    "lt": CmpOp.LT,
    "lt-eq": CmpOp.LE,
    "gt": CmpOp.GT,
    "gt-eq": CmpOp.GE,
    "eq": CmpOp.EQ,
    "not-eq": CmpOp.NE,
}
_MIRRORED = {"lt": "gt", "lt-eq": "gt-eq", "gt": "lt", "gt-eq": "lt-eq", "eq": "eq", "not-eq": "not-eq"}
_LONGEST_TEXT, _MOST_KNOWN = 200, 1024
_REPEATED = frozenset(_NEGATED) - {"in", "not-in"}
"""Predicates without a list, whose length is counted."""
_compact = json.JSONEncoder(separators=(",", ":")).encode
"""``json.dumps`` would make an encoder for each piece."""
_FLOATS = (types.FloatType, types.DoubleType)
_COMPARABLE: tuple[type[types.PrimitiveType], ...] = (
    types.BooleanType,
    types.IntegerType,
    types.LongType,
    *_FLOATS,
    types.DecimalType,
    types.StringType,
    types.UUIDType,
    types.FixedType,
    types.BinaryType,
    *TEMPORAL_UNIT,
)


@dataclass(frozen=True, slots=True)
class FilterLimits:
    """The largest filter that is compiled; a larger one is an error before any work is done."""

    depth: int = 100
    """Alternations of AND, OR and NOT; a chain of one of them is one level."""
    leaves: int = 10_000
    values: int = 100_000
    """Values in all IN lists together."""


@dataclass(frozen=True, slots=True)
class Binder:
    """Resolves names in the schemas that a client may mean, the preferred one first.

    Java asks for a snapshot and its schema also when it reads the head of a branch with the table's schema. A name that
    both resolve to one column is that column, and one that only one of them has is the column there.
    """

    schemas: tuple[Schema, ...]
    case_sensitive: bool = True
    known: dict[str, IrExpr] = field(default_factory=dict, compare=False, repr=False)
    """Conjuncts by their JSON: engines repeat most of them (``ts IS NOT NULL``) from query to query."""

    def find(self, name: str) -> Reference | None:
        """The field of this name; ``None`` where the schemas disagree about it.

        Raises:
            UnknownColumnError: No schema has it.
        """
        found: list[Reference] = []
        unknown: UnknownColumnError | None = None
        for schema in self.schemas:
            try:
                found.append(Names(schema, self.case_sensitive).dotted(name))
            except UnknownColumnError as error:
                unknown = unknown or error
        if not found:
            assert unknown is not None, "there is at least one schema"
            raise unknown
        return found[0] if len({one.field.field_id for one in found}) == 1 else None

    def find_id(self, field_id: int) -> Reference:
        """The field with this id."""
        for schema in self.schemas:
            name = schema.find_column_name(field_id)
            if name is not None:
                return Names(schema).dotted(name)
        raise UnknownColumnError(f"the table has no column with field id {field_id}", context={"field_id": field_id})


@dataclass(frozen=True, slots=True)
class CompiledFilter:
    """A filter as IR, and the piece of the filter that each of its conjuncts comes from."""

    predicate: IrExpr
    pieces: Mapping[IrExpr, str]

    def residual_json(self, residual: IrExpr) -> str:
        """The JSON text of a residual, which is an AND of conjuncts of the predicate."""
        texts = dict.fromkeys(self.pieces[conjunct] for conjunct in conjuncts(residual))
        if not texts:
            return "true"
        return reduce(lambda left, right: f'{{"type":"and","left":{left},"right":{right}}}', texts)


def compile_filter(filter_: Json, binder: Binder, limits: FilterLimits | None = None) -> CompiledFilter:
    """Compile the ``filter`` of a request.

    Raises:
        BadInputError: It is malformed, too large, names an unknown column or compares it with an unsuitable literal.
    """
    compiler = _Compiler(binder, limits or FilterLimits())
    compiled: list[IrExpr] = []
    pieces: dict[IrExpr, str] = {}
    try:
        for node, negated in _operands(filter_, "and", negated=False):
            expr, text = compiler.conjunct(node, negated)
            compiled.append(expr)
            for conjunct in conjuncts(expr):
                pieces.setdefault(conjunct, text)
    except RecursionError:
        raise BadInputError("the filter nests too deeply") from None
    return CompiledFilter(and_(*compiled), pieces)


def _operands(node: Json, kind: str, *, negated: bool) -> Iterator[tuple[Json, bool]]:
    """The operands of a chain of ``kind`` (AND or OR), left to right, without recursion; NOT is pushed down."""
    stack = [(node, negated)]
    other = "or" if kind == "and" else "and"
    while stack:
        node, negated = stack.pop()
        name = node.get("type") if isinstance(node, dict) else None
        if name == "not":
            stack.append((_get(node, "child"), not negated))
        elif name == (other if negated else kind):
            stack += [(_get(node, "right"), negated), (_get(node, "left"), negated)]
        else:
            yield node, negated


def _get(node: Mapping[str, Json], *keys: str) -> Json:
    for key in keys:
        if node.get(key) is not None:  # null is no operand
            return node[key]
    raise BadInputError(f"the filter has {_shown(node)} without {' or '.join(keys)}")


def _shown(node: Json) -> str:
    """A piece of a filter for messages."""
    if isinstance(node, dict) and "type" in node:
        return f"a predicate of type {excerpt(str(node['type']))!r}"
    return excerpt(json.dumps(node, ensure_ascii=False))


class _Compiler:
    """Compiles one filter; counts what its limits bound."""

    def __init__(self, binder: Binder, limits: FilterLimits) -> None:
        self.binder = binder
        self.limits = limits
        self.leaves = 0
        self.values = 0
        self._readable: dict[int, Json] = {}

    def conjunct(self, node: Json, negated: bool) -> tuple[IrExpr, str]:
        """A conjunct, and its JSON as its client can read it back."""
        known, written = self.binder.known, None
        kind = node.get("type") if isinstance(node, dict) and not negated else None
        if isinstance(kind, str) and kind in _REPEATED:
            written = _compact(node)
            found = known.get(written)
            if found is not None:
                self._count_leaf()
                return found, written
        expr = self.compile(node, negated=negated)
        sent = self.readable(node)
        if written is None or sent is not node:
            return expr, _compact({"type": "not", "child": sent} if negated else sent)
        if len(written) <= _LONGEST_TEXT:
            if len(known) >= _MOST_KNOWN:
                known.clear()
            known[written] = expr
        return expr, written

    def _count_leaf(self) -> None:
        self.leaves += 1
        if self.leaves > self.limits.leaves:
            raise BadInputError(f"the filter has more than {self.limits.leaves} predicates")

    def readable(self, node: Json) -> Json:
        """A compiled predicate as its client can read it back: without infinity, and with ranges for prefixes."""
        if not self._readable or not isinstance(node, dict):
            return node
        if node.get("type") in ("and", "or", "not"):
            return {key: self.readable(value) for key, value in node.items()}
        return self._readable.get(id(node), node)

    def compile(self, node: Json, *, negated: bool, depth: int = 0) -> IrExpr:
        """Compile a predicate or its negation."""
        if depth > self.limits.depth:
            raise BadInputError(f"the filter nests more than {self.limits.depth} levels")
        constant = _constant(node)
        if constant is not None:
            return TRUE if constant != negated else FALSE
        if not isinstance(node, dict) or not isinstance(node.get("type"), str):
            raise BadInputError(f"the filter has {_shown(node)} where a predicate is expected")
        kind = node["type"]
        if kind in ("and", "or", "not"):
            joined = "and" if (kind == "and") != negated else "or"
            operands = _operands(node, joined, negated=negated)
            parts = [self.compile(operand, negated=flag, depth=depth + 1) for operand, flag in operands]
            return and_(*parts) if joined == "and" else or_(*parts)
        self._count_leaf()
        if kind not in _NEGATED:
            raise BadInputError(f"the filter has {_shown(node)}, which is not a predicate of Iceberg")
        try:
            return self._leaf(node, kind, negated)
        except NeedsRows as reason:
            raise TypeMismatchError(f"{reason}; send a literal of the column's type") from None

    def _leaf(self, node: dict[str, Json], kind: str, negated: bool) -> IrExpr:
        term, values, kind = self._sides(node, kind)
        target = None if term is None else self._term(term)
        if target is None:
            return _opaque(node, negated)
        op = _NEGATED[kind] if negated else kind
        column, transform = target
        readable = finite_form(column, kind, term, values)
        if readable is None and transform is None:
            readable = range_form(column, kind, term, values, negative=op == "not-starts-with")
        if readable is not None:
            self._readable[id(node)] = readable
        if isinstance(column.type, types.FloatType) and any(map(beyond_float, values)):
            return _opaque(node, negated)
        if isinstance(column.type, types.IntegerType | types.LongType) and any(map(is_fraction, values)):
            return _opaque(node, negated)
        if op in ("is-null", "not-null"):
            return IsNull(column, negated=op == "not-null")
        if transform is not None:
            return _or_nulls(column, op, _transform_leaf(column, transform, op, values))
        if op in ("is-nan", "not-nan"):
            return _is_nan(column, op)
        leaf = _or_zeros(column, op, values, _column_leaf(column, op, values))
        return _or_nan(column, op, negated, _or_nulls(column, op, leaf))

    def _sides(self, node: dict[str, Json], kind: str) -> tuple[Json, list[Json], str]:
        """The term, the literals, and the operator as if the term stood on the left; no term for two columns."""
        if kind in ("is-null", "not-null", "is-nan", "not-nan"):
            return _get(node, "child", "term"), [], kind
        if kind in ("in", "not-in"):
            listed = _get(node, "values")
            if isinstance(listed, dict) and listed.get("type") == "literals":
                listed = _get(listed, "values")
            if not isinstance(listed, list):
                raise BadInputError(f"the filter has {_shown(node)} whose values are not a list")
            self.values += len(listed)
            if self.values > self.limits.values:
                raise BadInputError(f"the filter has more than {self.limits.values} values in IN lists")
            return _get(node, "child", "term"), [_value(one) for one in listed], kind
        if "left" not in node:
            return _get(node, "term"), [_value(_get(node, "value"))], kind
        left, right = _get(node, "left"), _get(node, "right")
        if not _is_expression(right):
            return left, [_value(right)], kind
        if not _is_expression(left) and kind in _MIRRORED:
            return right, [_value(left)], _MIRRORED[kind]
        return None, [], kind

    def _term(self, term: Json) -> tuple[Column, Transform | None] | None:
        """The column of a term and its transform; ``None`` for a term that statistics cannot answer."""
        transform: Transform | None = None
        if isinstance(term, dict) and term.get("type") == "transform":
            name = _get(term, "transform")
            if not isinstance(name, str):
                raise BadInputError(f"the filter has {_shown(name)} where the name of a transform is expected")
            try:
                transform = parse_transform(name)
            except (ValueError, ValidationError) as error:
                raise BadInputError(f"the filter has the invalid transform {excerpt(name)!r}") from error
            term = _get(term, "term")
        column = self._column(term)
        if column is None or transform is None or isinstance(transform, IdentityTransform):
            return None if column is None else (column, None)
        if isinstance(transform, UnknownTransform | VoidTransform):
            return None
        if not can_apply(transform, column.type):
            raise TypeMismatchError(f"the transform {transform} does not take column {column}, which is {column.type}")
        return column, transform

    def _column(self, term: Json) -> Column | None:
        """The column a reference names; ``None`` for metadata columns, nested types and ambiguous names."""
        if isinstance(term, dict) and term.get("type") == "apply":
            return None
        if isinstance(term, dict) and term.get("type") == "reference" and type(term.get("id")) is int:
            return _comparable(self.binder.find_id(term["id"]))
        name = _get(term, "name", "term") if isinstance(term, dict) and term.get("type") == "reference" else term
        if not isinstance(name, str):
            raise BadInputError(f"the filter has {_shown(term)} where a column is expected")
        try:
            found = self.binder.find(checked_text(name))
        except UnknownColumnError:
            if name.startswith("_"):  # a metadata column, such as _file: known to the engine alone
                return None
            raise
        return None if found is None else _comparable(found)


def _constant(node: Json) -> bool | None:
    """The value of ``true`` and ``false``, in all their forms."""
    if isinstance(node, bool):
        return node
    kind = node.get("type") if isinstance(node, dict) else None
    if kind == "literal" and isinstance(node.get("value"), bool):
        return bool(node["value"])
    return {"true": True, "false": False}.get(kind) if isinstance(kind, str) else None


def _comparable(reference: Reference) -> Column | None:
    column = reference.column
    return column if column is not None and isinstance(column.type, _COMPARABLE) else None


def _opaque(node: dict[str, Json], negated: bool) -> Opaque:
    """A predicate for the client alone; its text identifies it, so a long one ends with a digest."""
    text = _compact({"type": "not", "child": node} if negated else node)
    if len(text) > _LONGEST_TEXT:
        text = f"{excerpt(text, _LONGEST_TEXT)} {hashlib.sha256(text.encode()).hexdigest()}"
    return Opaque(text, (), None)


def _is_expression(side: Json) -> bool:
    """Whether a side of a comparison is a reference or a function, not a literal."""
    return isinstance(side, dict) and side.get("type") != "literal"


def _value(literal: Json) -> Json:
    """The value of a literal, which may be wrapped in an object."""
    if isinstance(literal, dict) and literal.get("type") == "literal":
        literal = _get(literal, "value")
    if literal is None or isinstance(literal, dict | list):
        raise BadInputError(f"the filter has {_shown(literal)} where a literal is expected")
    return literal


def _column_leaf(column: Column, op: str, values: Sequence[Json]) -> IrExpr:
    """The leaf with SQL's semantics of nulls and NaN."""
    term = Term(column, column.type)
    if op in ("in", "not-in"):
        if isinstance(column.type, types.IntegerType | types.LongType) and all(type(value) is int for value in values):
            listed = casts.in_integers(term, list(values))  # lists hold thousands
        else:
            listed = casts.in_list(term, [json_literal(column, value) for value in values])
        return negate(listed) if op == "not-in" else listed
    if op in ("starts-with", "not-starts-with"):
        return _starts_with(column, op, values[0])
    return casts.compare(term, _COMPARISONS[op], json_literal(column, values[0]))


def _starts_with(column: Column, op: str, prefix: Json) -> StartsWith | InList:
    if not isinstance(column.type, types.StringType) or not isinstance(prefix, str):
        raise TypeMismatchError(f"{op} needs a string column and a string, not {column.type} and {prefix!r}")
    negated = op == "not-starts-with"
    return StartsWith(column, checked_text(prefix), negated) if prefix else InList(column, (), negated=not negated)


def _transform_leaf(column: Column, transform: Transform, op: str, values: Sequence[Json]) -> IrExpr:
    """A leaf on the result of a transform, with its equivalent on the column."""
    result = Column(column.field_id, result_type(transform, column.type), column.path)
    if op in ("is-nan", "not-nan"):
        raise TypeMismatchError(f"{transform}({column}) is {result.type} and never NaN")
    leaf = _column_leaf(result, op, values)
    if isinstance(leaf, InList) and not leaf.values:  # no result, or any result: decided by null or not
        return InList(column, (), leaf.negated)
    if isinstance(leaf, Cmp | InList | StartsWith):
        return transformed(column, transform, leaf)
    raise TypeMismatchError(f"{transform}({column}) is {result.type} and cannot be compared with {values[0]!r}")


def _is_nan(column: Column, op: str) -> IrExpr:
    if not isinstance(column.type, _FLOATS):
        raise TypeMismatchError(f"column {column} is {column.type} and never NaN; {op} needs a float or double column")
    if op == "is-nan":
        return IsNaN(column)
    # Null is not NaN for Java and neither for PyIceberg.
    return and_(IsNaN(column, negated=True), or_(IsNull(column, negated=True), _client("a null", column)))


def _or_nulls(column: Column, op: str, leaf: IrExpr) -> IrExpr:
    """Nulls may match negative operators."""
    if op not in ("not-eq", "not-in", "not-starts-with"):
        return leaf
    return or_(leaf, and_(IsNull(column), _client("a null", column)))


def _or_nan(column: Column, op: str, negated: bool, leaf: IrExpr) -> IrExpr:
    """NaN may or may not match ``>`` and ``>=``; and ``<`` and ``<=`` where they are negations of these."""
    if not isinstance(column.type, _FLOATS) or op not in ("lt", "lt-eq", "gt", "gt-eq"):
        return leaf
    nan = _client("NaN", column)
    if op in ("gt", "gt-eq"):
        return and_(leaf, or_(IsNaN(column, negated=True), nan))
    return or_(leaf, and_(IsNaN(column), nan)) if negated else leaf


def _or_zeros(column: Column, op: str, values: Sequence[Json], leaf: IrExpr) -> IrExpr:
    """A zero may match, or fail to match, a comparison with the zero of the other sign."""
    if not isinstance(column.type, _FLOATS):
        return leaf
    signs = {math.copysign(1, number) for number in map(_number, values) if number == 0}
    zero, client = Cmp(column, CmpOp.EQ, 0.0), _client("a zero", column)
    if signs and (op in ("not-eq", "not-in") or (op == "lt" and 1 in signs) or (op == "gt" and -1 in signs)):
        return or_(leaf, and_(zero, client))
    if signs and (op in ("eq", "in") or (op == "gt-eq" and 1 in signs) or (op == "lt-eq" and -1 in signs)):
        return and_(leaf, or_(negate(zero), client))
    return leaf


def _number(literal: Json) -> float:
    try:
        return float(literal)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _client(what: str, column: Column) -> Opaque:
    """Whether a row with a null, NaN or zero matches is for the client to decide."""
    return Opaque(f"{what} in {column} matches", (column.field_id,), None)
