"""``stitch``: as ``binpack``, but row groups of any size are copied as they are.

Fastest, and right when row groups are already well-sized; many small row groups stay small.
"""

from __future__ import annotations

from floeplan.rewrite.strategies.base import Strategy

STITCH = Strategy("stitch", copies_bytes=True, copies_small_row_groups=True)
