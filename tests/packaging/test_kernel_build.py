"""A kernel that does not compile fails `make setup` and `make package`; pip may continue without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
WORKING, BROKEN_C = "answer = 42\n", 'cdef extern from "no_such_header.h":\n    int answer\nvalue = answer\n'


def build(folder: Path, kernel: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run setup.py on a source tree with one small kernel."""
    package = folder / "src" / "floeplan"
    package.mkdir(parents=True)
    (package / "_kernel.pyx").write_text(kernel)
    shutil.copy(ROOT / "setup.py", folder)
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", "built"]
    inherited = {name: value for name, value in os.environ.items() if name != "FLOEPLAN_REQUIRE_KERNELS"}
    return subprocess.run(
        command,
        cwd=folder,
        env=inherited | {"CFLAGS": "-O0"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_broken_kernel_fails_a_build_that_requires_kernels(tmp_path: Path) -> None:
    done = build(tmp_path, BROKEN_C, FLOEPLAN_REQUIRE_KERNELS="1")
    assert done.returncode != 0
    assert "no_such_header.h" in done.stderr


def test_other_builds_continue_without_a_broken_kernel(tmp_path: Path) -> None:
    done = build(tmp_path, BROKEN_C)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.glob("built/**/_kernel.*"))


def test_a_kernel_is_built(tmp_path: Path) -> None:
    done = build(tmp_path, WORKING, FLOEPLAN_REQUIRE_KERNELS="1")
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("built/floeplan/_kernel.*"))


@pytest.mark.parametrize("script", ["setup.sh", "package.sh"])
def test_the_scripts_require_kernels(script: str) -> None:
    assert "export FLOEPLAN_REQUIRE_KERNELS=1" in (ROOT / "scripts" / script).read_text()
