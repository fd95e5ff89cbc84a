"""``binpack``: files merged and split to the target size; rows keep their order."""

from __future__ import annotations

from floeplan.rewrite.strategies.base import Strategy

BINPACK = Strategy("binpack", copies_bytes=True)
