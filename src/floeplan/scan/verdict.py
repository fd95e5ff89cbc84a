"""Answers about many containers with the part each conjunct had in them.

The top-level AND is answered operand by operand, so that a plan can say which conjunct dropped what, and so that a
container needs only those conjuncts evaluated on its rows that its statistics do not prove: its residual.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

from floeplan.predicate.build import and_, conjuncts
from floeplan.predicate.ir import IrExpr
from floeplan.predicate.tristate import Mask, Tri, kleene
from floeplan.scan.summary import ConjunctEffect

_AT_A_TIME = 31
"""Operands folded together: their bits and the number of a pattern fit 64 bits."""

_COUNTED = 1 << 16
"""Patterns up to this number are found by counting."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a predicate and to each of its conjuncts."""

    tri: Tri
    conjuncts: tuple[IrExpr, ...]
    parts: tuple[Tri, ...]

    def effects(self, counted: Mask, why: Callable[[IrExpr], str]) -> tuple[ConjunctEffect, ...]:
        """How many of the counted containers each conjunct would drop alone, and why where it is few."""
        effects, total = [], int(np.count_nonzero(counted))
        for conjunct, part in zip(self.conjuncts, self.parts, strict=True):
            dropped = total - int(np.count_nonzero(part.keep & counted))
            reason = why(conjunct) if drops_little(dropped, total) else ""
            effects.append(ConjunctEffect(conjunct, dropped, reason))
        return tuple(effects)

    def proven(self, rows: npt.NDArray[np.intp]) -> Mask:
        """For each of these containers and each conjunct whether every row satisfies it."""
        if not self.parts:
            return np.zeros((len(rows), 0), dtype=np.bool_)
        return np.stack([part.all_match[rows] for part in self.parts], axis=1)


def drops_little(dropped: int, total: int) -> bool:
    """Whether so few containers are dropped that a reader asks why: fewer than one in ten."""
    return 10 * dropped < total


def judge(expr: IrExpr, nonempty: Mask, answer: Callable[[IrExpr], Tri]) -> Verdict:
    """Answer a predicate conjunct by conjunct."""
    operands = conjuncts(expr)
    parts = tuple(kleene(operand, nonempty, answer) for operand in operands)
    whole = reduce(Tri.__and__, parts) if parts else kleene(expr, nonempty, answer)
    return Verdict(whole, operands, parts)


def residuals(operands: tuple[IrExpr, ...], proven: Mask) -> tuple[tuple[IrExpr, ...], npt.NDArray[np.intp]]:
    """The distinct residuals of containers and, for each container, which it needs.

    The pattern of proven conjuncts is folded into one number per container, a bit for each operand, some at a time.
    """
    codes = np.zeros(len(proven), dtype=np.intp)
    patterns: list[tuple[IrExpr, ...]] = [()]
    for start in range(0, len(operands), _AT_A_TIME):
        some = operands[start : start + _AT_A_TIME]
        bits = ~proven[:, start : start + _AT_A_TIME] @ (1 << np.arange(len(some)))
        known, codes = _renumbered((codes << len(some)) + bits)
        patterns = [
            patterns[code >> len(some)] + tuple(operand for at, operand in enumerate(some) if code >> at & 1)
            for code in known.tolist()
        ]
    return tuple(and_(*pattern) for pattern in patterns), codes


def _renumbered(numbers: npt.NDArray[np.intp]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The distinct numbers in order, and the place of each number among them; small numbers need no sorting."""
    if not len(numbers) or numbers.max() > _COUNTED:
        return np.unique(numbers, return_inverse=True)
    there = np.bincount(numbers) > 0
    return np.flatnonzero(there), (np.cumsum(there) - 1)[numbers]
