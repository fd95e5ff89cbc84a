"""Parse a SQL predicate: a tree of AND, OR and NOT over pieces, and each piece as sqlglot's tree with bound columns.

The text is split at its ANDs, ORs, NOTs and grouping parentheses, and only the pieces between them go to sqlglot.
Splitting first is a matter of correctness, not speed:

* Each piece keeps its exact offsets in the text, which ``CompileError`` and syntax errors report. Only few of sqlglot's
  nodes carry theirs.
* sqlglot's tree of ``a OR b OR c …`` is one level deep per operand, and visiting a few hundred of them would exceed
  Python's recursion limit. Here they become one flat ``Junction``.

``BETWEEN x AND y`` and ``CASE … END`` keep their own AND and OR. Parentheses form a group only when an AND, an OR or
the end follows; all others (function calls, IN lists, arithmetic) belong to their piece.

sqlglot accepts more than Spark does, and binds ``IS``, ``IN``, ``LIKE`` and ``BETWEEN`` tighter than ``=`` where Spark
does not. Fail-safe: unbalanced parentheses, missing operands and nesting deeper than ``MAX_DEPTH`` raise an error
before any recursion starts. A comparison directly inside another comparison must be parenthesised, so that both
readings agree. Subqueries, aggregates, windows and parameters are rejected, and so is every function whose value
depends on when or where it runs (``now()``, ``rand()``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.databricks import Databricks
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel, ParseError, TokenError

from floeplan.errors import BadInputError, PredicateSyntaxError
from floeplan.predicate.names import Names, Reference
from floeplan.predicate.rows.nodes import COMPARISONS
from floeplan.text import excerpt

MAX_DEPTH = 100
MAX_TREE_DEPTH = 150
_OPEN = {TokenType.L_PAREN: TokenType.R_PAREN, TokenType.L_BRACKET: TokenType.R_BRACKET}
_CLOSE = frozenset(_OPEN.values())
_INTEGERS = re.compile(r"\bIN\s*+\(\s*+((?:-?+[0-9]{1,18}+\s*+,\s*+){99,}+-?+[0-9]{1,18}+)\s*+\)", re.A | re.I)
"""An IN list of at least 100 integers that surely fit into 64 bits."""
_BLANKS = str.maketrans(dict.fromkeys("0123456789-,", " "))

_TAKES_CONDITIONS = (exp.Not, exp.And, exp.Or, exp.Escape)
_TESTS = (exp.NullSafeNEQ, exp.Is, exp.In, exp.Between, exp.Like, exp.ILike, exp.RegexpLike)
_CONDITIONS = (*COMPARISONS, *_TESTS, *_TAKES_CONDITIONS)
_REJECTED: dict[type[exp.Expr], str] = {
    exp.Query: "a subquery",
    exp.Window: "a window function",
    exp.AggFunc: "an aggregate function",
    exp.Placeholder: "a parameter",
    exp.Parameter: "a parameter",
    exp.SessionParameter: "a parameter",
    exp.Star: "*",
}
_CLOCKS = (exp.CurrentDate, exp.CurrentTime, exp.CurrentTimestamp)
_NONDETERMINISTIC = (exp.Rand, exp.Randn, exp.Uuid, exp.CurrentUser, *_CLOCKS)
_SESSION = {"current_timezone", "current_catalog", "current_database", "current_schema", "user", "session_user"}
_TASK = {"input_file_name", "monotonically_increasing_id", "spark_partition_id", "shuffle"}
_NONDETERMINISTIC_NAMES = frozenset({"now", "curdate", "localtimestamp", *_SESSION, *_TASK})


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of tokens between boolean operators; ``start`` and ``end`` are offsets into the text, ``end`` exclusive."""

    tokens: tuple[Token, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Junction:
    """Operands joined by AND (``every``) or OR."""

    every: bool
    operands: tuple[BooleanTree, ...]


@dataclass(frozen=True, slots=True)
class Negation:
    """NOT of an operand."""

    operand: BooleanTree


BooleanTree: TypeAlias = Piece | Junction | Negation


@dataclass(frozen=True, slots=True)
class BoundPiece:
    """A parsed piece: its text, its tree with placeholders of field ids for columns, and the fields they refer to."""

    text: str
    start: int
    end: int
    tree: exp.Expr
    references: dict[int, Reference]


def syntax_error(sql: str, position: int, message: str) -> PredicateSyntaxError:
    """A syntax error at an offset; its context holds the line with a caret under the offset."""
    line_start = sql.rfind("\n", 0, position) + 1
    line = sql[line_start:].partition("\n")[0]
    first = max(0, position - line_start - 40)
    caret = " " * (position - line_start - first) + "^"
    return PredicateSyntaxError(
        f"cannot parse the predicate at position {position + 1}, near {sql[position : position + 20]!r}: {message}",
        context={"position": position + 1, "snippet": f"{line[first : first + 80]}\n{caret}"},
    )


def tokenize(sql: str) -> list[Token]:
    """Tokenize a text with Spark's rules for strings."""
    try:
        tokens = Spark().tokenize(sql)
    except TokenError as error:
        raise syntax_error(sql, max(len(sql) - 1, 0), "unfinished string, name or comment") from error
    if "''" not in sql and '""' not in sql:
        return list(tokens)
    # Spark reads 'it''s' as one string with a quote in it, sqlglot's Spark dialect as two adjacent strings.
    merged: list[Token] = []
    for token in tokens:
        before = merged[-1] if merged else token
        both_strings = before.token_type is TokenType.STRING is token.token_type
        if both_strings and before.end + 1 == token.start and sql[before.end] == sql[token.start]:
            text = before.text + sql[token.start] + token.text
            merged[-1] = Token(TokenType.STRING, text, start=before.start, end=token.end)
        else:
            merged.append(token)
    return merged


def split_predicate(sql: str) -> BooleanTree:
    """Split the text of a predicate; a long IN list of integers is one token (``is_integer_list``)."""
    has_list = len(sql) > 200 and _INTEGERS.search(sql)  # 100 integers and their commas
    tokens = _tokenize_around_lists(sql) if has_list else tokenize(sql)
    if not tokens:
        raise PredicateSyntaxError("the predicate is empty; write TRUE to match every row")
    return _Splitter(sql, tokens).split(0, len(tokens))


def _tokenize_around_lists(sql: str) -> list[Token]:
    """The tokens of a text with long lists of integers, each list in one token: sqlglot takes 6 µs per number."""
    ends: dict[int, int] = {}

    def shrink(found: re.Match[str]) -> str:
        """The list as the digit 0 and blanks, so that nothing else in the text moves."""
        ends[found.start(1)] = found.end(1)
        before, listed, after = found[0].partition(found[1])
        return f"{before}0{listed[1:].translate(_BLANKS)}{after}"

    with suppress(PredicateSyntaxError):  # reported for the text as written, below
        tokens = tokenize(_INTEGERS.sub(shrink, sql))
        shrunk = [at for at, token in enumerate(tokens) if token.start in ends and token.text == "0"]
        for at in shrunk:
            old, end = tokens[at], ends[tokens[at].start]
            tokens[at] = Token(TokenType.NUMBER, sql[old.start : end], old.line, old.col, old.start, end - 1)
        if len(shrunk) == len(ends):
            return tokens
    return tokenize(sql)  # what looks like a list is inside a string, a quoted name or a comment


def is_integer_list(token: Token) -> bool:
    """Whether a token holds a whole list of integers of at most 18 digits, separated by commas."""
    return token.token_type is TokenType.NUMBER and "," in token.text


class _Splitter:
    """Splits token ranges; recurses once per pair of grouping parentheses."""

    def __init__(self, sql: str, tokens: Sequence[Token]) -> None:
        self.sql = sql
        self.tokens = tokens
        self.closing = self._match_parentheses()

    def _match_parentheses(self) -> dict[int, int]:
        """The index of the closing parenthesis for each opening one."""
        closing: dict[int, int] = {}
        open_: list[int] = []
        for index, token in enumerate(self.tokens):
            if token.token_type in _OPEN:
                open_.append(index)
                if len(open_) > MAX_DEPTH:
                    raise BadInputError(f"the predicate nests more than {MAX_DEPTH} parentheses deep; flatten it")
            elif token.token_type in _CLOSE:
                if not open_ or _OPEN[self.tokens[open_[-1]].token_type] is not token.token_type:
                    raise syntax_error(self.sql, token.start, f"unexpected {token.text!r}")
                closing[open_.pop()] = index
            elif token.token_type is TokenType.SEMICOLON:
                raise syntax_error(self.sql, token.start, "a predicate is one expression; unexpected ';'")
        if open_:
            raise syntax_error(self.sql, self.tokens[open_[-1]].start, "this parenthesis is never closed")
        return closing

    def split(self, first: int, stop: int) -> BooleanTree:
        """Split the tokens from ``first`` up to ``stop`` into an OR of ANDs of operands."""
        alternatives: list[BooleanTree] = []
        conjunction: list[BooleanTree] = []
        for start, end in self._operands(first, stop):
            conjunction.append(self._operand(start, end))
            if end == stop or self.tokens[end].token_type is TokenType.OR:
                alternatives.append(_join(conjunction, every=True))
                conjunction = []
        return _join(alternatives, every=False)

    def _operands(self, first: int, stop: int) -> Iterator[tuple[int, int]]:
        """Token ranges between the ANDs and ORs of this level."""
        start = index = first
        cases = betweens = 0
        while index < stop:
            kind = self.tokens[index].token_type
            if kind in _OPEN:
                index = self.closing[index]
            elif kind is TokenType.CASE:
                cases += 1
            elif kind is TokenType.END and cases:
                cases -= 1
            elif cases:
                pass  # an AND or OR inside CASE … END
            elif kind is TokenType.BETWEEN:
                betweens += 1
            elif kind is TokenType.AND and betweens:
                betweens -= 1
            elif kind is TokenType.AND or kind is TokenType.OR:
                yield start, index
                start = index + 1
            index += 1
        yield start, stop

    def _operand(self, start: int, end: int) -> BooleanTree:
        """One operand: its NOTs, then a group in parentheses or a piece."""
        negations = 0
        while start < end and self.tokens[start].token_type is TokenType.NOT:
            negations += 1
            start += 1
        if start == end:
            position = self.tokens[start].start if start < len(self.tokens) else len(self.sql)
            raise syntax_error(self.sql, position, "an operand of AND, OR or NOT is missing")
        if self.tokens[start].token_type is TokenType.L_PAREN and self.closing[start] == end - 1 and end - start > 2:
            inner = self.split(start + 1, end - 1)
        else:
            run = tuple(self.tokens[start:end])
            inner = Piece(run, run[0].start, run[-1].end + 1)
        return Negation(inner) if negations % 2 else inner


def _join(operands: list[BooleanTree], *, every: bool) -> BooleanTree:
    return operands[0] if len(operands) == 1 else Junction(every, tuple(operands))


def parse_piece(sql: str, piece: Piece, names: Names) -> BoundPiece:
    """Parse one piece with sqlglot, and replace every column by a placeholder with its field id."""
    text = sql[piece.start : piece.end]
    references: dict[int, Reference] = {}

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
        placeholder.meta["name"] = reference.name  # for messages
        return placeholder

    try:
        tree = _parse(sql, piece)
        # The depth of the tree, without recursion.
        depth, level = 0, [tree]
        while level := [child for node in level for child in node.iter_expressions()]:
            depth += 1
        if depth >= MAX_TREE_DEPTH:
            raise RecursionError
        for node in tree.walk():
            _reject_unsupported(node, text)
        if any(map(_is_ambiguous, tree.walk())):
            message = "one condition is inside another; put parentheses around the inner one"
            raise syntax_error(sql, piece.start, message)
        return BoundPiece(text, piece.start, piece.end, tree.transform(bind, copy=False), references)
    except RecursionError:
        raise BadInputError(f"the predicate is nested too deeply to be evaluated: {excerpt(text)}") from None


def _parse(sql: str, piece: Piece) -> exp.Expr:
    tokens: list[Token] = []
    for token in piece.tokens:
        if is_integer_list(token):
            parts = Spark().tokenize(token.text)
            place = token.line, token.col
            tokens += [Token(p.token_type, p.text, *place, token.start + p.start, token.start + p.end) for p in parts]
        else:
            tokens.append(token)
    try:
        # ``v:a.b``, which Spark has since 4.0, is in sqlglot's dialect of Databricks only.
        dialect = Databricks() if any(token.token_type is TokenType.COLON for token in tokens) else Spark()
        trees = dialect.parser(error_level=ErrorLevel.IMMEDIATE).parse_into(exp.Condition, tokens, sql)
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


def _reject_unsupported(node: exp.Expr, text: str) -> None:
    """Raise for what no predicate on a table may contain."""
    for kind, what in _REJECTED.items():
        if isinstance(node, kind):
            raise BadInputError(f"{what} cannot be used in a predicate on a table: {text}", context={"text": text})
    if isinstance(node, exp.Is) and not isinstance(node.expression, exp.Null | exp.Boolean):
        message = f"IS takes NULL, TRUE, FALSE or UNKNOWN; compare values with = or <=>: {text}"
        raise BadInputError(message, context={"text": text})
    named = isinstance(node, exp.Anonymous) and node.name.lower() in _NONDETERMINISTIC_NAMES
    if named or isinstance(node, _NONDETERMINISTIC):
        message = f"{node.sql('spark')} changes with every run; write its value as a literal: {text}"
        raise BadInputError(message, context={"text": text})


def _is_ambiguous(node: exp.Expr) -> bool:
    """Whether Spark and sqlglot may group the operands of a node differently."""
    # A comparison whose operand is a comparison without parentheses: ``a = b IN (1, 2)``.
    compares = isinstance(node, (*_CONDITIONS, exp.Binary)) and not isinstance(node, _TAKES_CONDITIONS)
    if compares and any(isinstance(child, _CONDITIONS) for child in node.iter_expressions()):
        return True
    # ``||`` has the precedence of ``+`` in Spark and a lower one in sqlglot.
    if not isinstance(node, exp.DPipe | exp.Add | exp.Sub):
        return False
    other = (exp.Add, exp.Sub) if isinstance(node, exp.DPipe) else (exp.DPipe,)
    return isinstance(node.this, other) or isinstance(node.expression, other)


def _path(node: exp.Expr) -> tuple[str, ...] | None:
    """The parts of a column name, if the node is one."""
    if isinstance(node, exp.Column):
        return tuple(part.name for part in node.parts)
    if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Identifier):
        parent = _path(node.this)
        return None if parent is None else (*parent, node.expression.name)
    return None
