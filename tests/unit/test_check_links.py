"""Broken links in the documents are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.check_links import broken_links

pytestmark = pytest.mark.unit


def test_only_broken_links_are_reported(tmp_path: Path) -> None:
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
        "document.md: gone.md is a broken link",
        "document.md: other.md#nope is a broken link",
        "document.md: #nope is a broken link",
        "document.md: #not-a-heading is a broken link",
    ]
