"""Three-valued answers about many containers at once.

A predicate is TRUE, FALSE or NULL on each row. Statistics state which of the three *may* occur in a container; ``Tri``
holds one mask for each. Masks only err on the side of ``may``:

* a container is dropped when TRUE may not occur;
* every row of it matches when neither FALSE nor NULL may occur;
* everything else is unknown and is read.

Combinations are Kleene's, over sets of rows: NOT swaps TRUE and FALSE and leaves NULL, so a negation is correct with
nulls and NaN without being pushed to the leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from floeplan.predicate.ir import And, FalseExpr, IrExpr, Not, NullExpr, Or, TrueExpr
from floeplan.vectors import Mask


class TriState(IntEnum):
    """The answer for one container: no row matches, cannot determine, every row matches."""

    FALSE = 0
    UNKNOWN = 1
    TRUE = 2


@dataclass(frozen=True, slots=True)
class Tri:
    """Which of TRUE, FALSE and NULL may occur among the rows of each container."""

    may_true: Mask
    may_false: Mask
    may_null: Mask

    @classmethod
    def unknown(cls, nonempty: Mask) -> Tri:
        """Nothing is known: all three may occur wherever there are rows."""
        return cls(nonempty, nonempty, nonempty)

    @property
    def keep(self) -> Mask:
        """Containers that may hold a matching row."""
        return self.may_true

    @property
    def all_match(self) -> Mask:
        """Kept containers in which every row matches."""
        return self.may_true & ~self.may_false & ~self.may_null

    def states(self) -> npt.NDArray[np.int8]:
        """One ``TriState`` value per container."""
        return self.may_true.astype(np.int8) + self.all_match.astype(np.int8)

    def refine(self, other: Tri) -> Tri:
        """Combine two sound answers to the *same* predicate: only what may occur in both may occur."""
        return Tri(self.may_true & other.may_true, self.may_false & other.may_false, self.may_null & other.may_null)

    def __invert__(self) -> Tri:
        return Tri(self.may_false, self.may_true, self.may_null)

    def __and__(self, other: Tri) -> Tri:
        null = (self.may_null & (other.may_true | other.may_null)) | (self.may_true & other.may_null)
        return Tri(self.may_true & other.may_true, self.may_false | other.may_false, null)

    def __or__(self, other: Tri) -> Tri:
        return ~(~self & ~other)


def kleene(expr: IrExpr, nonempty: Mask, answer: Callable[[IrExpr], Tri]) -> Tri:
    """Evaluate a tree from the answers to its leaves; in a container without rows nothing may occur."""
    match expr:
        case And(operands):
            return _fold(operands, nonempty, answer, Tri.__and__)
        case Or(operands):
            return _fold(operands, nonempty, answer, Tri.__or__)
        case Not(operand):
            return ~kleene(operand, nonempty, answer)
        case TrueExpr() | FalseExpr() | NullExpr():
            return _constant(expr, nonempty)
    return answer(expr)


def _constant(expr: IrExpr, nonempty: Mask) -> Tri:
    nothing = np.zeros_like(nonempty)
    match expr:
        case TrueExpr():
            return Tri(nonempty, nothing, nothing)
        case FalseExpr():
            return Tri(nothing, nonempty, nothing)
    return Tri(nothing, nothing, nonempty)


def _fold(
    operands: tuple[IrExpr, ...], nonempty: Mask, answer: Callable[[IrExpr], Tri], combine: Callable[[Tri, Tri], Tri]
) -> Tri:
    result = kleene(operands[0], nonempty, answer)
    for operand in operands[1:]:
        result = combine(result, kleene(operand, nonempty, answer))
    return result
