"""Loading the compiled (Cython) kernels.

A kernel is an extension module beside a pure-Python implementation of the same functions. Wheels contain the kernels;
a source tree without a compiler, or a Spark executor that received only the Python files, runs the slower Python code
with the same results. ``FLOEPLAN_PURE_PYTHON=1`` disables the kernels.
"""

from __future__ import annotations

import logging
import os
from functools import lru_cache
from importlib import import_module
from typing import Any

PURE_PYTHON = os.environ.get("FLOEPLAN_PURE_PYTHON", "") not in ("", "0")
"""Whether the environment disables the kernels."""

_log = logging.getLogger("floeplan")


def load_kernel(name: str, *, pure_python: bool = PURE_PYTHON) -> Any:
    """Import a kernel by module name; ``None`` when it is disabled or missing. A missing one is logged once."""
    if pure_python:
        return None
    try:
        return import_module(name)
    except ImportError:
        _log_missing()
        return None


@lru_cache(maxsize=1)
def _log_missing() -> None:
    """Log that kernels are missing; the cache makes this happen once per process, for the first of them."""
    _log.warning(
        "the compiled kernels are not available: slower pure-Python code runs instead; "
        "install a Floeplan wheel for this platform, or set FLOEPLAN_PURE_PYTHON=1 to disable them"
    )
