"""The audit of locked packages reports every kind of finding, and never passes a check it could not run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scripts import audit_deps
from scripts.audit_deps import (
    Answer,
    bad,
    locked,
    may_be_used,
    parse_installer_output,
    parse_pip_audit_output,
    unpinned,
)

pytestmark = pytest.mark.unit

LOCK = """
# a comment
one==1.2 ; python_full_version < '3.14' \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via two
two==2.0
three>=3 \\
    --hash=sha256:cc
four==4.* --hash=sha256:dd
"""


def test_every_package_is_pinned_and_has_a_hash() -> None:
    packages = locked(LOCK)
    assert [(package.name, package.hashes) for package in packages] == [
        ("one", 2),
        ("two", 0),
        ("three", 1),
        ("four", 1),
    ]
    assert list(unpinned(packages)) == [
        "two==2.0 has no hash",
        "three>=3 is not pinned to one version",
        "four==4.* is not pinned to one version",
    ]


def test_versions_known_to_be_bad_are_found() -> None:
    known = "# why\nOne<1.3   CVE-1: bad\ntwo<2.0   CVE-2: worse\n"
    (found,) = bad(locked(LOCK), known)
    assert found.startswith("one==1.2")
    assert found.endswith("CVE-1: bad")


@pytest.mark.parametrize(
    ("licence", "fine"),
    [
        ("MIT", True),
        ("Apache-2.0 OR GPL-3.0", True),
        ("BSD License; Apache Software License", True),
        ("MIT AND GPL-3.0-only", False),
        ("GNU Affero General Public License v3", False),
        ("", False),
    ],
)
def test_every_licence_that_applies_must_be_allowed(licence: str, fine: bool) -> None:
    assert may_be_used(licence) is fine


@pytest.mark.parametrize(
    ("code", "stderr", "answer"),
    [
        (0, "Resolved 3 packages", Answer()),
        (0, "warning: `one==1.2` is yanked (reason: broken)", Answer(("`one==1.2` is yanked (reason: broken)",))),
        (1, "  Because there is no version of one==1.2 …", Answer(("Because there is no version of one==1.2 …",))),
        (2, "error: dns error", Answer(not_checked="the package index could not be reached")),
    ],
)
def test_withdrawn_versions_are_findings_and_a_failed_check_is_not_a_pass(
    code: int, stderr: str, answer: Answer
) -> None:
    assert parse_installer_output(code, "", stderr) == answer


@pytest.mark.parametrize(
    ("packages", "findings", "checked"),
    [
        ([{"name": "one", "version": "1", "vulns": []}], (), True),
        ([{"name": "one", "version": "1", "vulns": [{"id": "CVE-1"}]}], ("one 1: CVE-1",), True),
        ([{"name": "one", "skip_reason": "unknown"}], (), False),
    ],
)
def test_what_pip_audit_skips_is_not_checked(packages: list[Any], findings: tuple[str, ...], checked: bool) -> None:
    answer = parse_pip_audit_output(0, json.dumps({"dependencies": packages}), "")
    assert answer.findings == findings
    assert (answer.not_checked == "") is checked


@pytest.mark.parametrize("out", ["", "[]", "no JSON", '{"other": 1}'])
def test_invalid_output_of_pip_audit_is_not_a_pass(out: str) -> None:
    assert parse_pip_audit_output(0, out, "").not_checked


def test_a_finding_fails_and_an_unavailable_service_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit_deps, "withdrawn", Answer)
    monkeypatch.setattr(audit_deps, "advised", lambda: Answer(not_checked="no response"))
    assert audit_deps.main() == 0
    assert "not checked: no response" in capsys.readouterr().out
    monkeypatch.setattr(audit_deps, "advised", lambda: Answer(("one 1: CVE-1",)))
    assert audit_deps.main() == 1
    assert "one 1: CVE-1" in capsys.readouterr().out
