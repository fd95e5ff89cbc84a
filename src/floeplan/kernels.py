"""Loading the compiled (Cython) kernels.

A kernel is an extension module beside a pure-Python implementation of the same functions. Wheels contain the kernels; a
source tree without a compiler runs the slower Python code with the same results. ``FLOEPLAN_PURE_PYTHON=1`` disables
the kernels.

Spark executors may import the package from a zip, from which Python cannot import extension modules. There the kernels
are files beside the zip, each under its full module name (``tasks.shipping`` sends them).
"""

from __future__ import annotations

import logging
import os
import sys
from functools import lru_cache
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

PURE_PYTHON = os.environ.get("FLOEPLAN_PURE_PYTHON", "") not in ("", "0")
"""Whether the environment disables the kernels."""
KERNEL_SUFFIX = EXTENSION_SUFFIXES[0]
"""How files of kernels for this interpreter end: Python version, machine and C library, for example
``.cpython-311-x86_64-linux-gnu.so``."""

_log = logging.getLogger("floeplan")


def load_kernel(name: str, *, pure_python: bool = PURE_PYTHON) -> Any:
    """Import a kernel by module name; ``None`` when it is disabled or missing. A missing one is logged once."""
    if pure_python:
        return None
    try:
        return import_module(name)
    except ImportError:
        pass
    try:
        return _load_beside_zip(name)
    except ImportError:
        _log_missing()
        return None


def _load_beside_zip(name: str) -> ModuleType:
    """Load a kernel from a file beside the archive that this module was imported from."""
    file = Path(__file__).parents[1].with_name(name + KERNEL_SUFFIX)
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise ModuleNotFoundError(f"no kernel {file}", name=name)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[name] = module
    return module


@lru_cache(maxsize=1)
def _log_missing() -> None:
    """Log that kernels are missing; the cache makes this happen once per process, for the first of them."""
    _log.warning(
        "the compiled kernels are not available: slower pure-Python code runs instead; "
        "install a Floeplan wheel for this platform, or set FLOEPLAN_PURE_PYTHON=1 to disable them"
    )
