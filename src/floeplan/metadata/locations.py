"""Where the files of a table may lie, and so which files may be removed in its name.

Rule: a table's locations are its own and those its properties send new files to. A file lies in one of them when
scheme, authority and path say so, with no ``..`` and, on this machine, no symbolic link on the way: a link leads out,
or gives a file that is in use another name.

Fail-safe: whatever is not plainly inside is outside. Metadata can name any file, of another table or of none, and a
file that stays costs storage only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from pyiceberg.table.metadata import TableMetadata

from floeplan.errors import CorruptMetadataError

_SAME_SCHEME = {"s3a": "s3", "s3n": "s3", "": "file"}
_PATH_PROPERTIES = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)


@dataclass(frozen=True, slots=True)
class Location:
    """A location taken apart, with names that mean the same written the same way."""

    scheme: str
    authority: str
    path: str

    @classmethod
    def parse(cls, text: str) -> Location:
        """Take a path or URI apart; one slash is as good as several, and none stands for the folder of this process.

        Raises:
            CorruptMetadataError: It is no URI.
        """
        if "://" not in text and not text.startswith("file:"):
            return cls("file", "", _one_slash(_from_here(text)))
        try:
            split = urlsplit(text)
        except ValueError as error:
            raise CorruptMetadataError(f"{text!r} names no file: {error}", context={"file": text}) from error
        scheme = _SAME_SCHEME.get(split.scheme.lower(), split.scheme.lower())
        authority = "" if scheme == "file" and split.netloc in ("", "localhost") else split.netloc
        rest = text.split("://", 1)[-1].removeprefix(split.netloc) if "://" in text else _from_here(split.path)
        return cls(scheme, authority, _one_slash(rest))

    def holds(self, other: Location) -> bool:
        """Whether the other one lies under this one."""
        if (self.scheme, self.authority) != (other.scheme, other.authority) or ".." in other.path.split("/"):
            return False
        if not _is_under(other.path, self.path):
            return False
        inside = other.path.removeprefix(self.path)
        return self.scheme != "file" or _folders_followed(other.path) == os.path.realpath(self.path) + inside


@dataclass(frozen=True, slots=True)
class TableLocations:
    """The locations of one table."""

    roots: tuple[Location, ...]

    @classmethod
    def of(cls, metadata: TableMetadata) -> TableLocations:
        """The locations a table's metadata name."""
        return cls.named(metadata.location, metadata.properties)

    @classmethod
    def named(cls, location: str, properties: Mapping[str, str]) -> TableLocations:
        """The table's own location, and those of its properties."""
        named = [location, *(properties.get(name, "") for name in _PATH_PROPERTIES)]
        return cls(tuple(Location.parse(text) for text in named if text))

    def hold(self, path: str) -> bool:
        """Whether a file lies in one of the locations."""
        try:
            location = Location.parse(path)
            return any(root.holds(location) for root in self.roots)
        except (CorruptMetadataError, ValueError):
            return False


def _from_here(path: str) -> str:
    return path if path.startswith("/") else f"{os.getcwd()}/{path}"


def _one_slash(path: str) -> str:
    return "/" + "/".join(part for part in path.split("/") if part)


def _is_under(path: str, root: str) -> bool:
    return root != "/" and path.startswith(f"{root}/")


def _folders_followed(path: str) -> str:
    """The path with the links of its folders followed; what is removed is the last part, be it a link or not."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)
