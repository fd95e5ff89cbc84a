"""Print the public API as text, one line per name: the exports of `floeplan.__all__` with signatures and public
members.

`tests/unit/public_api.txt` is this text, checked in: API changes show up in diffs.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType

import floeplan


def describe(name: str, thing: object) -> Iterator[str]:
    """Yield the lines of one export; a class is followed by its public members, a module by its `__all__`."""
    if isinstance(thing, ModuleType) and not callable(thing):
        yield f"{name}: module"
        for member in sorted(thing.__all__):
            yield from describe(f"{name}.{member}", getattr(thing, member))
    elif inspect.isclass(thing):
        yield f"{name}{_signature(thing)}: class({', '.join(base.__name__ for base in thing.__bases__)})"
        for member, value in sorted(vars(thing).items()):
            if not member.startswith("_"):
                yield _member(f"{name}.{member}", value)
    else:
        yield _member(name, thing)


def _member(name: str, value: object) -> str:
    if isinstance(value, property):
        return f"{name}: property"
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    is_function = inspect.isfunction(value) or isinstance(value, ModuleType)
    return f"{name}{_signature(value)}" if is_function else f"{name}: {type(value).__name__}"


def _signature(thing: object) -> str:
    return str(inspect.signature(thing)) if callable(thing) else ""


def snapshot() -> str:
    lines = [line for name in sorted(floeplan.__all__) for line in describe(name, getattr(floeplan, name))]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(snapshot(), end="")
