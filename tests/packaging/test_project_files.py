"""Files around the package: workflows, templates, and what they say about versions."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml

from tests.support.documents import ROOT

pytestmark = pytest.mark.unit

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_targets_that_exist(path: object) -> None:
    document = yaml.safe_load(path.read_text())  # type: ignore[attr-defined]
    assert document["permissions"]["contents"] == "read"
    for job in document["jobs"].values():
        for step in job["steps"]:
            made = re.match(r"make (.*)", step.get("run", ""))
            assert made is None or set(made[1].split()) <= TARGETS
            assert "uses" not in step or "@" in step["uses"]


def test_what_a_change_need_not_pass_runs_every_night() -> None:
    """Airflow, Dagster, zamboni, Flink, Trino, iceberg-go and iceberg-rust run only there."""
    document = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())
    # YAML 1.1 reads the key `on` as true.
    assert document[True]["schedule"][0]["cron"].endswith("* * *")
    run = {step["run"] for job in document["jobs"].values() for step in job["steps"] if "run" in step}
    assert run >= {"make engines", "make load"}
    engines = document["jobs"]["engines"]
    rust = next(step["run"] for step in engines["steps"] if "rustup" in step.get("run", ""))
    needed = re.search(r"iceberg-rust \(needs Rust ([\d.]+)\)", (ROOT / "CONTRIBUTING.md").read_text())
    assert needed is not None
    assert needed[1] in rust
    assert {job["env"]["CI"] for job in document["jobs"].values()} == {"true"}  # a skip is a failure


def test_python_versions_agree() -> None:
    classified = {name[-4:] for name in PROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", name)}
    built = {f"3.{minor}" for minor in re.findall(r"cp3(\d+)-", PROJECT["tool"]["cibuildwheel"]["build"])}
    tested = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["tests"]["strategy"]["matrix"]
    assert classified == built == set(tested["python"]) == {"3.11", "3.12", "3.13", "3.14"}


def test_the_citation_has_the_version_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["project"]["version"]
    assert citation["license"] == PROJECT["project"]["license"]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_are_forms(path: object) -> None:
    document = yaml.safe_load(path.read_text())  # type: ignore[attr-defined]
    assert document.keys() >= {"name", "description", "body"} or document.keys() == {"blank_issues_enabled"}


def test_the_hooks_run_what_lint_runs() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    run = {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in hooks}
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert lint is not None
    assert run == set(re.findall(r"\$\(BIN\)/([\w-]+)", lint[1]))


def test_the_readme_leads_with_installing_and_says_what_is_not_published() -> None:
    readme = (ROOT / "README.md").read_text()
    assert re.findall(r"^## (.*)$", readme, re.MULTILINE)[0] == "Install"
    assert "not published on PyPI yet" in readme


def test_the_demo_sets_up_no_test_services() -> None:
    """`setup.sh run` ends before PostgreSQL, Maven, jars and Chromium are looked for."""
    script = (ROOT / "scripts/setup.sh").read_text()
    after = script.index('if [ "$PURPOSE" = run ]')
    for step in ("has_services || service_packages", "scripts/fetch_jars.py", "\nensure_chromium\n"):
        assert script.rindex(step) > after
    demo = re.search(r"^demo:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert demo is not None
    assert "setup.sh run" in demo[1]
