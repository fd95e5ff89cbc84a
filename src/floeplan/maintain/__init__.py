"""Table maintenance: cluster manifests, expire snapshots, remove orphan files, find and repair problems.

Rule: what deletes files (``expire``, ``orphans``) is a dry run by default. Fail-safe: a file is deleted only
when the metadata that the catalog has at that time does not refer to it; a manifest list that may be truncated is
refused.

- ``inspect``: what a table consists of;
- ``doctor``: problems and their fixes; ``partition_check``: partition values that are disproven; ``remedies``: what the
  commands it recommends would do; ``coarser_spec``: the spec for a table with too many small partitions;
- ``rewrite_manifests``: entries clustered by partition;
- ``expire``: old snapshots, and the files that snapshots refer to; ``orphans``: unreferenced files.

Imported by ``audit``, ``fleet``, ``explorer`` and ``cli``.

``fp.maintain(…)`` is a function, defined in ``floeplan.fleet.run``. It has the name of this package, and Python binds
that name to the package once it is imported, so the package is callable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """This package, as a function."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.__wrapped__(*args, **options)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The function, whose signature ``inspect`` and notebooks show; imported by name, because it is above."""
        function: Callable[..., Any] = import_module("floeplan.fleet.run").maintain
        return function


sys.modules[__name__].__class__ = _Callable
