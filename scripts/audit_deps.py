"""`make audit-deps`: check the packages in requirements.lock.

Rule: every package is pinned to a version and hashes, is not in known_bad.txt, has an allowed licence, can be installed
and has not been yanked; and pip-audit reports no advisory for it.

Fail-safe: the last two need a network. A check that cannot run is reported as `not checked` and does not fail; only a
finding fails.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
KNOWN_BAD = ROOT / "scripts" / "known_bad.txt"
UV = str(Path(sys.executable).with_name("uv"))
SECONDS = 180
ALLOWED = re.compile(r"\b(MIT|MIT-0|Apache|BSD|0BSD|ISC|PSF|Python|CNRI-Python|Zlib|CC0|Mozilla|MPL|Unlicense)\b", re.I)
EXCEPTIONS = {"psycopg2-binary": "LGPL: used by tests only, as it is, and not shipped"}
"""Packages with another licence, and why they may be used."""


@dataclass(frozen=True, slots=True)
class Locked:
    """One package of the lock file."""

    text: str
    hashes: int

    @property
    def requirement(self) -> Requirement:
        return Requirement(self.text)

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> Version | None:
        """The pinned version, if any."""
        pins = [pin for pin in self.requirement.specifier if pin.operator == "==" and not pin.version.endswith("*")]
        return Version(pins[0].version) if len(pins) == 1 else None


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a check that needs the network."""

    findings: tuple[str, ...] = ()
    not_checked: str = ""


def locked(text: str) -> list[Locked]:
    """The packages of a lock file."""
    lines = [
        line for line in text.replace("\\\n", " ").splitlines() if line.strip() and not line.strip().startswith("#")
    ]
    return [Locked(line.split("--hash")[0].strip(), line.count("--hash=sha256:")) for line in lines]


def unpinned(packages: list[Locked]) -> Iterator[str]:
    for package in packages:
        if package.version is None:
            yield f"{package.text} is not pinned to one version"
        elif not package.hashes:
            yield f"{package.text} has no hash"


def bad(packages: list[Locked], known: str) -> Iterator[str]:
    """Packages locked at a version known to be bad."""
    lines = [line.split(maxsplit=1) for line in known.splitlines() if line.strip() and not line.startswith("#")]
    for text, why in lines:
        requirement = Requirement(text)
        for package in packages:
            same = package.name == canonicalize_name(requirement.name)
            if (
                same
                and package.version is not None
                and requirement.specifier.contains(package.version, prereleases=True)
            ):
                yield f"{package.text}: {why}"


def unlicensed(packages: list[Locked]) -> Iterator[str]:
    """Installed packages whose licence is not allowed; packages for other systems are not installed."""
    for package in packages:
        try:
            declared = metadata.metadata(package.name)
        except metadata.PackageNotFoundError:
            continue
        licence = licence_of(declared)
        if not may_be_used(licence) and package.name not in EXCEPTIONS:
            yield f"{package.text} has the licence {licence or 'unknown'}"


def may_be_used(licence: str) -> bool:
    """Whether every required licence is allowed; of alternatives, one suffices."""
    return all(ALLOWED.search(part) for part in re.split(r"\bAND\b|;", licence))


def licence_of(declared: metadata.PackageMetadata) -> str:
    """The licence in the package metadata: the most reliable field that is set."""
    classifiers = [line for line in declared.get_all("Classifier") or () if line.startswith("License ::")]
    named = "; ".join(line.rpartition("::")[2].strip() for line in classifiers if not line.endswith("OSI Approved"))
    return declared.get("License-Expression") or named or str(declared.get("License") or "")[:80]


def withdrawn() -> Answer:
    """Check that every version can be installed by its hashes and none has been yanked."""
    options = ["pip", "install", "--dry-run", "--reinstall", "--no-deps", "--require-hashes", "-r", str(LOCK)]
    return parse_installer_output(*_run([UV, *options]))


def parse_installer_output(code: int, out: str, stderr: str) -> Answer:
    """Findings are its warnings and missing versions; another failure means that nothing was checked."""
    gone = re.compile(r"yanked|no version of|not found in the package registry")
    found = tuple(line.strip().removeprefix("warning: ") for line in stderr.splitlines() if gone.search(line))
    return Answer(found, "" if code == 0 or found else "the package index could not be reached")


def advised() -> Answer:
    """Advisories that pip-audit reports for the locked versions."""
    options = ["--requirement", str(LOCK), "--disable-pip", "--require-hashes", "--format", "json", "--timeout", "15"]
    return parse_pip_audit_output(
        *_run([UV, "tool", "run", "--quiet", "pip-audit", "--progress-spinner", "off", *options])
    )


def parse_pip_audit_output(code: int, out: str, stderr: str) -> Answer:
    """Findings by package; a skipped package was not checked, although pip-audit exits with success."""
    try:
        packages = json.loads(out)["dependencies"]
    except (ValueError, LookupError, TypeError):
        return Answer(not_checked="pip-audit could not be run, or reach its service")
    found = [f"{one['name']} {one['version']}: {flaw['id']}" for one in packages for flaw in one.get("vulns", ())]
    skipped = sum("skip_reason" in one for one in packages)
    return Answer(tuple(found), f"{skipped} of {len(packages)} packages are unknown to pip-audit" if skipped else "")


def _run(command: list[str]) -> tuple[int, str, str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return 1, "", ""
    return done.returncode, done.stdout, done.stderr


def main() -> int:
    packages = locked(LOCK.read_text())
    answers = {
        "pinned, with hashes": Answer(tuple(unpinned(packages))),
        "no known-bad version": Answer(tuple(bad(packages, KNOWN_BAD.read_text()))),
        "licences": Answer(tuple(unlicensed(packages))),
        "installable, not yanked": withdrawn(),
        "no advisory": advised(),
    }
    for check, answer in answers.items():
        state = "FAILED" if answer.findings else "not checked" if answer.not_checked else "ok"
        print(f"{check:26}{state}{f': {answer.not_checked}' if answer.not_checked else ''}")
        for finding in answer.findings:
            print(f"    {finding}")
    print(f"{len(packages)} packages")
    return int(any(answer.findings for answer in answers.values()))


if __name__ == "__main__":
    sys.exit(main())
