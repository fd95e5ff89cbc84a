"""Following the doctor: every command that it recommends is run, and then no longer recommended."""

from __future__ import annotations

import shlex

from pyiceberg.table import Table

from floeplan.cli.main import main
from floeplan.maintenance.doctor import Finding, doctor

_MOST = 12


def advised(table: Table) -> dict[str, Finding]:
    """The findings with a fix, by the command that they recommend."""
    found = doctor(table.refresh(), sample=0).findings
    return {finding.fix: finding for finding in found if finding.fix is not None}


def follow_advice(table: Table) -> list[str]:
    """Run what the doctor recommends until it recommends nothing; the kinds of the findings, in order."""
    followed = list[str]()
    advice = advised(table)
    while advice:
        command, finding = next(iter(advice.items()))
        followed.append(finding.kind)
        assert len(followed) <= _MOST, f"advice does not end: {followed}"
        for line in command.split(" && "):
            program, *arguments = shlex.split(line)
            assert program == "floeplan"
            assert main(arguments) == 0, line
        advice = advised(table)
        assert command not in advice, f"recommended again: {advice[command].message} (before: {finding.message})"
    return followed
