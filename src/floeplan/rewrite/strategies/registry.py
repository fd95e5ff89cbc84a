"""The strategies by name."""

from __future__ import annotations

from floeplan.errors import InvalidOptionError
from floeplan.rewrite.strategies.base import Strategy
from floeplan.rewrite.strategies.binpack import BINPACK
from floeplan.rewrite.strategies.hilbert import HILBERT
from floeplan.rewrite.strategies.sort import SORT
from floeplan.rewrite.strategies.stitch import STITCH
from floeplan.rewrite.strategies.zorder import ZORDER

_STRATEGIES: dict[str, Strategy] = {}


def register(*strategies: Strategy) -> None:
    """Make strategies available under their names."""
    _STRATEGIES.update({strategy.name: strategy for strategy in strategies})


register(BINPACK, SORT, ZORDER, HILBERT, STITCH)


def strategy_names() -> tuple[str, ...]:
    """The names of all strategies, in the order of registration."""
    return tuple(_STRATEGIES)


def find_strategy(name: str) -> Strategy:
    """The strategy of this name.

    Raises:
        InvalidOptionError: There is none.
    """
    if name not in _STRATEGIES:
        raise InvalidOptionError(f"unknown strategy {name!r}; known strategies are {', '.join(_STRATEGIES)}")
    return _STRATEGIES[name]
