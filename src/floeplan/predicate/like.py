"""LIKE patterns: what they match, and how much of it a range of strings can say.

``%`` stands for any run of characters, ``_`` for one character; the escape character (a backslash unless ESCAPE names
another) makes either of them, or itself, plain. As in Spark an escape before anything else, or at the end, is an error.
"""

from __future__ import annotations

from dataclasses import dataclass

from floeplan.errors import BadInputError


@dataclass(frozen=True, slots=True)
class LikePattern:
    """A pattern as plain text and wildcards in turn: ``None`` is ``%`` and ``""`` is ``_``."""

    parts: tuple[str | None, ...]

    @property
    def prefix(self) -> str:
        """The plain text every match begins with."""
        first = self.parts[0] if self.parts else None
        return first or ""

    @property
    def is_plain(self) -> bool:
        """Whether there is no wildcard: LIKE is then ``=``."""
        return not self.parts or (len(self.parts) == 1 and bool(self.parts[0]))

    @property
    def is_prefix(self) -> bool:
        """Whether the pattern is its prefix and then anything."""
        rest = self.parts[1:] if self.prefix else self.parts
        return bool(rest) and all(part is None for part in rest)

    def regex(self) -> str:
        """The pattern in RE2's syntax, anchored."""
        return r"(?s)\A" + "".join(map(_regex_part, self.parts)) + r"\z"


def _regex_part(part: str | None) -> str:
    if part is None:
        return ".*"
    return "".join(c if c.isalnum() else f"\\x{{{ord(c):x}}}" for c in part) if part else "."


def parse_like(pattern: str, escape: str = "\\") -> LikePattern:
    """Read a pattern."""
    if len(escape) != 1:
        raise BadInputError(f"the ESCAPE of LIKE must be one character, not {escape!r}")
    parts: list[str | None] = []
    plain = ""
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, "")
            if escaped not in ("%", "_", escape):
                raise BadInputError(f"in LIKE {pattern!r} the escape {escape!r} may only precede %, _ or itself")
            plain += escaped
        elif character in "%_":
            parts += [*([plain] if plain else []), None if character == "%" else ""]
            plain = ""
        else:
            plain += character
    return LikePattern((*parts, plain) if plain else tuple(parts))
