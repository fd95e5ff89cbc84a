"""The recipes of ``examples/maintain`` and the Dockerfile."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from floeplan.cli.main import load_command
from floeplan.fleet.policy_file import parse_policy, read_policy
from tests.support.documents import ROOT

pytestmark = pytest.mark.unit

RECIPES = ROOT / "examples/maintain"


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_the_policies_of_the_guide_and_the_example_are_valid() -> None:
    policy = read_policy(RECIPES / "policy.toml")
    assert policy.settings("mart.sales")[0].after == ("raw.*",)
    assert not policy.settings("raw.tmp_1")[0].maintain
    blocks = re.findall(r"^```toml\n(.*?)^```", (ROOT / "docs/maintain.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len([parse_policy(block) for block in blocks]) == 1


@pytest.mark.parametrize("path", ["examples/maintain/crontab", "docs/maintain.md", "Dockerfile"])
def test_commands_use_options_that_exist(path: str) -> None:
    known = {name for parameter in load_command("maintain").params for name in parameter.opts}
    text = (ROOT / path).read_text().replace('", "', " ")
    commands = re.findall(r"^.*floeplan maintain .*$", text, re.MULTILINE) or re.findall(r'"maintain .*"', text)
    assert commands
    used = {word.strip('"]') for line in commands for word in line.split() if word.startswith("--")}
    assert {name for name in used if name not in known} == set()


def test_the_tables_that_dbt_has_built(tmp_path: Path) -> None:
    nodes = {
        "model.shop.orders": {"schema": "mart", "alias": "orders", "config": {"materialized": "incremental"}},
        "model.shop.recent": {"schema": "mart", "alias": "recent", "config": {"materialized": "view"}},
        "model.shop.broken": {"schema": "mart", "alias": "broken", "config": {"materialized": "table"}},
        "test.shop.unique": {"schema": "mart", "alias": "unique", "config": {"materialized": "test"}},
    }
    results = [{"unique_id": name, "status": "error" if "broken" in name else "success"} for name in nodes]
    (tmp_path / "manifest.json").write_text(json.dumps({"nodes": nodes}))
    (tmp_path / "run_results.json").write_text(json.dumps({"results": results}))
    assert module(RECIPES / "dbt/after_dbt.py").built_tables(tmp_path) == ["mart.orders"]


def test_the_steps_of_the_dockerfile() -> None:
    """What it copies exists, what it runs does not run as root, and the wheel has all the files that it needs."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    steps = [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]
    known = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in steps} <= known
    copied = [word for name, rest in steps if name == "COPY" and "--from" not in rest for word in rest.split()[:-1]]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    licences = re.search(r"license-files = \[(.*?)\]", (ROOT / "pyproject.toml").read_text())
    assert licences is not None
    assert set(shlex.split(licences[1].replace(",", " "))) <= set(copied)
    assert [rest for name, rest in steps if name == "USER"][-1] in next(rest for _, rest in steps if "useradd" in rest)
    assert json.loads(steps[-2][1]) == ["floeplan"]
    assert json.loads(steps[-1][1])[0] == "maintain"
    assert all("--no-cache-dir" in rest for name, rest in steps if name == "RUN" and "pip" in rest)
