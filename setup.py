"""The compiled kernels: every `src/floeplan/**/_*.pyx`. All else is in pyproject.toml.

Each kernel is optional: where no C compiler is found the build goes on without it, and its pure-Python twin, or a
slower way to do the same, is used.
"""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup


def module_name(source: Path) -> str:
    return ".".join(source.relative_to("src").with_suffix("").parts)


kernels = [Extension(module_name(source), [str(source)]) for source in sorted(Path("src").rglob("_*.pyx"))]
extensions = cythonize(kernels, build_dir="build/cython", language_level=3) if kernels else []
for extension in extensions:
    extension.optional = True  # set here, because cythonize makes new extensions that forget it
setup(ext_modules=extensions)
