"""SQL expressions in error messages."""

from __future__ import annotations

from sqlglot import exp
from sqlglot.errors import ErrorLevel

from floeplan.errors import UnsupportedError


def described(node: exp.Expr | None) -> str:
    """A function by its name, anything else as written."""
    text = written(node)
    name, parenthesis, _ = text.partition("(")
    return f"the function {name.lower()}()" if parenthesis and name.isidentifier() else text


def written(node: exp.Expr | None) -> str:
    """The SQL of a node, with the names of its columns instead of their field ids."""
    if node is None:
        return "a missing argument"
    named = node.transform(lambda part: exp.Var(this=part.meta["name"]) if isinstance(part, exp.Placeholder) else part)
    try:
        return named.sql("spark", unsupported_level=ErrorLevel.IGNORE)
    except (ValueError, TypeError, AttributeError, LookupError):
        return f"{node.key}(…)"  # sqlglot cannot generate some functions whose arguments are missing


def unsupported(node: exp.Expr, what: str = "") -> UnsupportedError:
    return UnsupportedError(
        f"{what or described(node)} cannot be evaluated outside Spark", context={"expression": written(node)}
    )
