"""What a compilation could not turn into IR."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CompileError:
    """One piece of a predicate that only rows can answer.

    Args:
        kind: Kebab-case name of the reason's kind.
        message: Why statistics cannot answer the piece.
        text: The piece as it was written.
        start: Offset of its first character in the SQL text; ``None`` when the predicate was not text.
        end: Offset one past its last character.
    """

    kind: str
    message: str
    text: str
    start: int | None = None
    end: int | None = None

    def __str__(self) -> str:
        return f"{self.text}: {self.message}"

    def to_dict(self) -> dict[str, object]:
        """The JSON form."""
        return {"kind": self.kind, "message": self.message, "text": self.text, "start": self.start, "end": self.end}
