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
from floeplan.predicate.ir import TRUE, IrExpr
from floeplan.predicate.tristate import Mask, Tri, kleene
from floeplan.scan.summary import ConjunctEffect


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a predicate and to each of its conjuncts."""

    tri: Tri
    conjuncts: tuple[IrExpr, ...]
    parts: tuple[Tri, ...]

    def effects(self, counted: Mask, why: Callable[[IrExpr], str]) -> tuple[ConjunctEffect, ...]:
        """How many of the counted containers each conjunct would drop alone, and why where it is none."""
        effects = []
        for conjunct, part in zip(self.conjuncts, self.parts, strict=True):
            dropped = int(np.count_nonzero(~part.keep & counted))
            reason = why(conjunct) if not dropped and counted.any() else ""
            effects.append(ConjunctEffect(str(conjunct), dropped, reason))
        return tuple(effects)

    def residuals(self) -> tuple[tuple[IrExpr, ...], npt.NDArray[np.intp]]:
        """The distinct residuals and, per container, which of them it needs."""
        if not self.parts:
            return (TRUE,), np.zeros(len(self.tri.keep), dtype=np.intp)
        proven = np.stack([part.all_match for part in self.parts], axis=1)
        patterns, codes = np.unique(proven, axis=0, return_inverse=True)
        expressions = tuple(
            and_(*(c for c, known in zip(self.conjuncts, pattern, strict=True) if not known)) for pattern in patterns
        )
        return expressions, codes.reshape(-1)


def judge(expr: IrExpr, nonempty: Mask, answer: Callable[[IrExpr], Tri]) -> Verdict:
    """Answer a predicate conjunct by conjunct."""
    operands = conjuncts(expr)
    parts = tuple(kleene(operand, nonempty, answer) for operand in operands)
    whole = reduce(Tri.__and__, parts) if parts else kleene(expr, nonempty, answer)
    return Verdict(whole, operands, parts)
