"""Check the relative links of every Markdown document: the file and the heading after a `#` exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings: lower case, dashes for spaces, other punctuation dropped."""
    headings = HEADING.findall(FENCE.sub("", document.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def broken_links(document: Path) -> list[str]:
    broken = []
    for target in LINK.findall(FENCE.sub("", document.read_text())):
        path, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        file = (document.parent / path) if path else document
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(f"{document.name}: {target} is a broken link")
    return broken


def main() -> None:
    documents = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/**/*.md")])
    broken = [line for document in documents for line in broken_links(document)]
    print("\n".join(broken) if broken else f"{len(documents)} documents, no broken links")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
