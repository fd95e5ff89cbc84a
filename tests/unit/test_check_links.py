"""Links in the documents that lead nowhere are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.check_links import broken_links

pytestmark = pytest.mark.unit


def test_only_links_that_lead_nowhere_are_reported(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# The other one, then\n")
    document = tmp_path / "document.md"
    document.write_text(
        "# Top of `it`\n"
        "[file](other.md) [heading](other.md#the-other-one-then) [here](#top-of-it) [web](https://example.org/x)\n"
        "[gone](gone.md) [no heading](other.md#nope) [not here](#nope)\n"
        "```\n# not a heading\n[code](in-code.md)\n```\n"
        "[in code](#not-a-heading)\n"
    )
    assert broken_links(document) == [
        "document.md: gone.md leads nowhere",
        "document.md: other.md#nope leads nowhere",
        "document.md: #nope leads nowhere",
        "document.md: #not-a-heading leads nowhere",
    ]
