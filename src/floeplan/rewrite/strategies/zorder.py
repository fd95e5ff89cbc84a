"""``zorder``: rows clustered along a Z-order curve, which interleaves the bits of all columns."""

from __future__ import annotations

from floeplan.rewrite.strategies.curves import CurveStrategy, interleave

ZORDER = CurveStrategy("zorder", curve=interleave)
