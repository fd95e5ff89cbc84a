"""The options of ``format("floeplan")``: which table is meant, and which of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.utils.config import Config

from floeplan.catalog import connect, load_table
from floeplan.errors import InvalidOptionError, UnknownOptionError

NAME = "floeplan"
STREAM_OPTIONS = ("start-snapshot-id", "streaming-skip-overwrite-snapshots", "query-id")
_OF_SPARK = ("checkpointlocation",)
_OPTIONS = ("table", "path", "catalog", "where", "columns", "snapshot-id", "ref", "branch", "overwrite-where")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a query says about the table it means."""

    given: Mapping[str, str]

    def __post_init__(self) -> None:
        known = {*_OPTIONS, *STREAM_OPTIONS, *_OF_SPARK}
        unknown = [name for name in self.given if name.lower() not in known and not _of_catalog(name)]
        if unknown:
            names = ", ".join((*_OPTIONS, *STREAM_OPTIONS))
            raise UnknownOptionError(
                f"format {NAME} has no option {unknown[0]!r}; it has {names} and catalog.<property>",
                context={"option": unknown[0]},
            )

    def get(self, name: str) -> str | None:
        """An option, whatever the case of its name."""
        return next((value for key, value in self.given.items() if key.lower() == name), None)

    def number(self, name: str) -> int | None:
        """An option that is a whole number."""
        text = self.get(name)
        if text is None:
            return None
        try:
            return int(text)
        except ValueError:
            raise InvalidOptionError(f"option {name} is {text!r} but must be a number") from None

    def flag(self, name: str) -> bool:
        """An option that is true or false."""
        return (self.get(name) or "false").lower() == "true"

    def table(self) -> Table:
        """The table, as it is now."""
        name = self.get("table") or self.get("path")
        if name is None:
            raise InvalidOptionError(f"format {NAME} needs the option 'table', or the name of a table to load")
        properties = {key[len("catalog.") :]: value for key, value in self.given.items() if _of_catalog(key)}
        catalog = self.get("catalog")
        if not properties:
            return load_table(name, catalog)
        return load_table(name, connect(catalog or Config().get_default_catalog_name(), properties))

    @property
    def columns(self) -> list[str] | None:
        """The columns to show; all when not given."""
        text = self.get("columns")
        return None if text is None else [name.strip() for name in text.split(",")]


def _of_catalog(name: str) -> bool:
    return name.lower().startswith("catalog.")
