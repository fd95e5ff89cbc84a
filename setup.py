"""Build the Cython kernels: every `src/floeplan/**/_*.pyx`. Everything else is in pyproject.toml.

`make setup` and `make package` set FLOEPLAN_REQUIRE_KERNELS=1, and a kernel that does not compile fails the build.
Without it, pip may build from the sdist where there is no C compiler: the installation then has no kernels and uses
the slower pure-Python code.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

REQUIRED = os.environ.get("FLOEPLAN_REQUIRE_KERNELS") == "1"


def module_name(source: Path) -> str:
    return ".".join(source.relative_to("src").with_suffix("").parts)


kernels = [Extension(module_name(source), [str(source)]) for source in sorted(Path("src").rglob("_*.pyx"))]
extensions = cythonize(kernels, build_dir="build/cython", language_level=3) if kernels else []
for extension in extensions:
    extension.optional = not REQUIRED  # set after cythonize, which makes new extensions without this attribute
setup(ext_modules=extensions)
