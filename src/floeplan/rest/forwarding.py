"""Editing one member of a JSON object while every other byte of its text stays as it is.

Documents of other catalogs have fields and numbers that a parser would write differently or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floeplan.rest.wire import RestError

_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class JsonMembers:
    """The members of a JSON object with their places in the text."""

    text: str
    values: Mapping[str, Any]
    spans: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, text: str) -> JsonMembers:
        """Parse an object.

        Raises:
            RestError: The upstream catalog sent something else.
        """
        try:
            return cls._parsed(text)
        except (ValueError, IndexError, RecursionError) as error:
            message = f"the upstream catalog sent no JSON object: {type(error).__name__}"
            raise RestError(502, "InternalServerError", message, cause="upstream") from error

    @classmethod
    def _parsed(cls, text: str) -> JsonMembers:
        values: dict[str, Any] = {}
        spans: dict[str, tuple[int, int]] = {}
        position = _expect(text, 0, "{")
        while text[_skip(text, position)] != "}":
            key, position = _DECODER.raw_decode(text, _skip(text, position))
            start = _skip(text, _expect(text, position, ":"))
            values[key], end = _DECODER.raw_decode(text, start)
            spans[key] = (start, end)
            position = _skip(text, end)
            if text[position] == ",":
                position += 1
        return cls(text, values, spans)

    def text_of(self, name: str) -> str:
        """The text of one member; ``null`` if there is none."""
        start, end = self.spans.get(name, (0, 0))
        return self.text[start:end] or "null"

    def replaced(self, name: str, value: Any) -> str:
        """The text with another value of one member."""
        dumped = json.dumps(value, ensure_ascii=False)
        if name in self.spans:
            start, end = self.spans[name]
            return self.text[:start] + dumped + self.text[end:]
        place = self.text.index("{") + 1
        return f"{self.text[:place]}{json.dumps(name)}:{dumped}{',' if self.spans else ''}{self.text[place:]}"


def _skip(text: str, position: int) -> int:
    while text[position] in " \t\r\n":
        position += 1
    return position


def _expect(text: str, position: int, character: str) -> int:
    position = _skip(text, position)
    if text[position] != character:
        raise ValueError(f"expected {character} at {position}")
    return position + 1
