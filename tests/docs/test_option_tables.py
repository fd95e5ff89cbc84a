"""Tables of options in the documents match the code: every option, its name and its default."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import floeplan
from floeplan.cli import main as cli
from floeplan.fleet.policy import Settings
from floeplan.maintenance import doctor
from floeplan.rewrite.plan.options import RewriteOptions
from floeplan.scan.model import ScanOptions
from tests.support.documents import ROOT

pytestmark = pytest.mark.unit

ROW = re.compile(r"^\| `([^|]+?)`[^|]* \| ([^|]+?) \|", re.MULTILINE)
PLAIN = {
    "partition_filter",
    "where",
    "case_sensitive",
    "strict",
    "trust_lists",
    "allow_late_equality_deletes",
    "strategy",
    "by",
    "spec",
}
SPOKEN: tuple[tuple[object, str], ...] = (
    (True, "true"),
    (False, "false"),
    (None, "–"),
    ((), "–"),
    (2**63 - 1, "no limit"),
    (2**31 - 1, "never"),
    (100 * 1024**3, "100 GiB"),
)


def kebab(name: str) -> str:
    return name.replace("_", "-").replace("partial-progress-", "partial-progress.")


def section(document: str, heading: str) -> str:
    text = (ROOT / "docs" / document).read_text()
    return re.split(r"^## ", text.split(f"## {heading}\n")[1], flags=re.MULTILINE)[0]


def shown_default(value: object) -> str:
    if isinstance(value, str):
        return f"`{value}`"
    found = (text for known, text in SPOKEN if known is value or (known == value and type(known) is not bool))
    return next(found, str(value))


def test_every_option_of_a_rewrite_is_in_the_guide_with_its_default() -> None:
    documented = dict(ROW.findall(section("rewriting.md", "Every option").split("| for |")[0]))
    fields = dataclasses.fields(RewriteOptions)
    expected = {one.name if one.name in PLAIN else kebab(one.name): shown_default(one.default) for one in fields}
    assert documented == expected


def test_every_option_of_a_scan_is_in_the_guide() -> None:
    text = section("planning.md", "Options")
    assert all(f"`{field.name}`" in text for field in dataclasses.fields(ScanOptions))


def test_every_finding_of_the_doctor_is_in_the_guide() -> None:
    documented = dict(ROW.findall(section("maintenance.md", "The doctor")))
    listed = re.findall(r"^([a-z-]+) +(error|warning|info) ", doctor.__doc__ or "", re.MULTILINE)
    assert documented == dict(listed)


def test_every_setting_of_a_policy_is_in_the_guide_with_its_default() -> None:
    documented = dict(ROW.findall(section("maintain.md", "The policy").split("### Settings of a table")[1]))
    settings = Settings().to_dict()
    assert documented == {name: "–" if value == [] else shown_default(value) for name, value in settings.items()}


def test_every_variable_is_in_the_page_on_configuration() -> None:
    sources = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    used = {name for text in sources for name in re.findall(r'"(FLOEPLAN_[A-Z_]+)"', text)}
    page = (ROOT / "docs/configuration.md").read_text()
    assert {name for name in used if f"`{name}`" not in page} == set()


def test_every_public_function_is_in_the_reference() -> None:
    page = (ROOT / "docs/api.md").read_text()
    functions = {name for name in floeplan.__all__ if name.islower() and name != "prune"}
    assert {name for name in functions if not re.search(rf"^::: \S+\.{name}$", page, re.MULTILINE)} == set()


def test_every_command_is_somewhere_in_the_documents() -> None:
    texts = [page.read_text() for page in (ROOT / "README.md", *Path(ROOT / "docs").glob("*.md"))]
    missing = [
        name for name in cli.COMMANDS if not any(re.search(rf"(floeplan|`){name}|floeplan {name}", t) for t in texts)
    ]
    assert missing == []
