"""The rules of the test suite, tested on small suites: skips, markers, warnings, fuzzing, imports."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.fuzz import fuzzing

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
MARKED = "import pytest\npytestmark = pytest.mark.unit\n"


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    pytester.makeconftest((ROOT / "tests/conftest.py").read_text())
    pytester.makepyprojecttoml((ROOT / "pyproject.toml").read_text())
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("CI", "true")
    return pytester


def run(suite: pytest.Pytester, *sources: str) -> pytest.RunResult:
    """Run a suite with a module for each source."""
    (suite.path / "tests").mkdir()
    for number, source in enumerate(sources):
        (suite.path / f"tests/test_{number}.py").write_text(source)
    return suite.runpytest_subprocess("tests")


def test_a_skip_is_a_failure_in_ci(suite: pytest.Pytester) -> None:
    bodies = [
        "def test_it():\n    pytest.skip('no java')",
        "@pytest.mark.xfail\ndef test_it():\n    assert False",
        "pytest.importorskip('a_missing_module')\ndef test_it(): pass",
    ]
    result = run(suite, *(MARKED + body for body in bodies))
    result.assert_outcomes(errors=1)  # a skipped module ends the run before the first test
    result.stdout.fnmatch_lines(["*which CI does not allow*a_missing_module*"])
    (suite.path / "tests/test_2.py").unlink()
    result = suite.runpytest_subprocess("tests")
    result.assert_outcomes(failed=2)
    assert str(result.stdout).count("which CI does not allow") >= 2


def test_a_skip_is_a_skip_elsewhere(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "")
    run(suite, MARKED + "def test_it():\n    pytest.skip('no java')").assert_outcomes(skipped=1)


def test_a_test_without_a_marker_is_refused(suite: pytest.Pytester) -> None:
    result = run(suite, "def test_it(): pass")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*set pytestmark to one of unit, property*test_0.py*"])


def test_a_warning_is_a_failure(suite: pytest.Pytester) -> None:
    run(suite, MARKED + "import warnings\ndef test_it():\n    warnings.warn('old')").assert_outcomes(failed=1)


@pytest.mark.matrix
@pytest.mark.parametrize(("seconds", "outcome"), [("", "passed"), ("60", "failed")])
def test_fuzzing_continues_with_new_examples(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, seconds: str, outcome: str
) -> None:
    monkeypatch.setenv("FLOEPLAN_FUZZ_SECONDS", seconds)
    found = "seen = set()\n@given(st.integers())\ndef test_it(n):\n    seen.add(n)\n    assert len(seen) < 200"
    result = run(suite, f"{MARKED}from hypothesis import given, strategies as st\n{found}")
    result.assert_outcomes(**{outcome: 1})


def test_seeds_are_the_same_every_time_unless_fuzzing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "SECONDS", 0.0)
    assert list(fuzzing.seeds(3)) == [0, 1, 2]
    monkeypatch.setattr(fuzzing, "SECONDS", 60.0)
    assert next(fuzzing.seeds(3)) != next(fuzzing.seeds(3))


def test_no_test_module_imports_another() -> None:
    """Shared code is in ``tests.support``, so that a test module can be read, moved and run alone."""
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            found += [f"{path}: {name}" for name in names if name.startswith("tests.") and ".support" not in name]
    assert found == []
