"""Table folders as Iceberg's Hadoop catalog keeps them: ``metadata/vN.metadata.json`` and a hint to the newest version.

Rule: the newest version is that of ``version-hint.text`` or a later one that exists. A commit writes the metadata
under a temporary name and gives it the name of the next version, which fails if another writer has taken it; then it
updates the hint. Local file systems do that atomically with a hard link. Object stores cannot, so folders there are
read-only, as Iceberg demands.

Fail-safe: the hint may be behind, wrong or missing, and nothing depends on it. A folder without a usable hint is read
by its newest metadata file, with a warning; it is committed to only if its files have the names of this catalog.
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.serializers import NOOP_COMPRESSOR, Compressor, FromByteStream, GzipCompressor, ToOutputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata
from pyiceberg.typedef import Identifier

from floeplan.errors import UnsupportedError

METADATA_SUFFIX = ".metadata.json"
HINT = "version-hint.text"
_ENDINGS = (METADATA_SUFFIX, f".gz{METADATA_SUFFIX}", f"{METADATA_SUFFIX}.gz")
"""Of a version, plain and compressed; the last one is read only, Iceberg no longer writes it."""
_COMPRESSED = _ENDINGS[1:]
_VERSION = re.compile(r"v(\d+)(?:(?:\.gz)?\.metadata\.json|\.metadata\.json\.gz)")
_NUMBERED = re.compile(r"(\d+)-[^/]*\.metadata\.json")
_log = logging.getLogger(__name__)


def local_path(location: str) -> str | None:
    """The path of a local folder or file; ``None`` for a location in another store."""
    if location.startswith("file:"):
        return "/" + location.removeprefix("file:").lstrip("/")
    return None if "://" in location else location


def newest_metadata(folder: str, io: FileIO, warn: bool = True) -> str:
    """The newest metadata file of a table folder.

    Raises:
        FileNotFoundError: There is neither a usable hint nor, in a local folder, a metadata file.
    """
    home = f"{folder.rstrip('/')}/metadata"
    try:
        with io.new_input(f"{home}/{HINT}").open() as stream:
            hint = stream.read().decode(errors="replace").strip()
    except FileNotFoundError:
        problem = f"has no metadata/{HINT}"
    else:
        if (newest := _hinted(home, hint, io)) is not None:
            return newest
        problem = f"has no metadata file of version {hint!r}, which metadata/{HINT} names"
    found = _newest_listed(home)
    if warn:
        text = "%s %s: reading %s, the newest metadata file; if a catalog has the table, name it there"
        _log.warning(text, folder, problem, found.rsplit("/", 1)[1])
    return found


def _hinted(home: str, hint: str, io: FileIO) -> str | None:
    """The metadata file of a hint or the newest that follows it; ``None`` if there is no such file."""
    if not hint.isdecimal():  # PyIceberg's hint is the name of a metadata file
        named = f"{home}/{hint.removesuffix(METADATA_SUFFIX)}{METADATA_SUFFIX}"
        return named if hint and io.new_input(named).exists() else None
    newest, version = None, int(hint)
    while True:
        names = (f"{home}/v{version}{ending}" for ending in _ENDINGS)
        found_next = next((name for name in names if io.new_input(name).exists()), None)
        if found_next is None:
            return newest
        newest, version = found_next, version + 1


def _newest_listed(home: str) -> str:
    """The metadata file with the highest number; of several, the one that was written last."""
    folder = local_path(home)
    if folder is None or not os.path.isdir(folder):
        raise FileNotFoundError(home)
    best: tuple[bool, int, int] | None = None
    name = ""
    for entry in os.scandir(folder):
        versioned = _VERSION.fullmatch(entry.name)
        if match := versioned or _NUMBERED.fullmatch(entry.name):
            rank = (versioned is not None, int(match[1]), entry.stat().st_mtime_ns)
            if best is None or rank > best:
                best, name = rank, entry.name
    if best is None:
        raise FileNotFoundError(home)
    return f"{home}/{name}"


def is_writable(location: str) -> bool:
    """Whether a table folder with this newest metadata file can be committed to."""
    return local_path(location) is not None and _VERSION.fullmatch(location.rsplit("/", 1)[1]) is not None


class FolderCatalog(NoopCatalog):
    """The catalog of one local table folder; the table's name is the folder."""

    def __init__(self, folder: str, properties: Mapping[str, str]) -> None:
        super().__init__("folder", **properties)
        self.folder = folder

    def load_table(self, identifier: str | Identifier) -> Table:
        """The table in its newest version."""
        io = load_file_io(dict(self.properties), self.folder)
        try:
            location = newest_metadata(self.folder, io, warn=False)  # whoever opened the folder was warned
            with io.new_input(location).open() as stream:
                compression: Compressor = GzipCompressor() if location.endswith(_COMPRESSED) else NOOP_COMPRESSOR
                metadata = FromByteStream.table_metadata(stream, compression=compression)
        except FileNotFoundError as error:
            raise NoSuchTableError(f"{self.folder} has no table metadata") from error
        return Table((self.folder,), metadata, location, load_file_io(dict(self.properties), location), self)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Write the next version.

        Raises:
            CommitFailedException: Another writer has written it.
        """
        current = self.load_table(table.name())
        for requirement in requirements:
            requirement.validate(current.metadata)
        new = update_table_metadata(current.metadata, updates, metadata_location=current.metadata_location)
        if new.location != current.metadata.location or "write.metadata.path" in new.properties:
            raise UnsupportedError(
                f"{self.folder} is a table folder: it has a fixed location and no write.metadata.path",
                context={"table": self.folder},
            )
        match = _VERSION.fullmatch(current.metadata_location.rsplit("/", 1)[1])
        assert match is not None, "is_writable was checked"
        version = int(match[1]) + 1
        home = Path(local_path(self.folder) or self.folder) / "metadata"
        codec = ".gz" if new.properties.get("write.metadata.compression-codec", "none").lower() == "gzip" else ""
        name = f"v{version}{codec}{METADATA_SUFFIX}"
        temporary = home / f"{uuid.uuid4()}{codec}{METADATA_SUFFIX}"
        prefix = current.metadata_location.rsplit("/", 1)[0]
        ToOutputFile.table_metadata(new, current.io.new_output(f"{prefix}/{temporary.name}"))
        try:
            if any((home / f"v{version}{ending}").exists() for ending in _ENDINGS):
                raise FileExistsError(name)
            # A hard link fails if the name is taken, which a rename within POSIX does not.
            os.link(temporary, home / name)
        except FileExistsError:
            raise CommitFailedException(f"another writer committed version {version} of {self.folder}") from None
        finally:
            with suppress(OSError):
                temporary.unlink()
        self._write_hint(home, version)
        return CommitTableResponse(metadata=new, metadata_location=f"{prefix}/{name}")  # type: ignore[call-arg]

    def _write_hint(self, home: Path, version: int) -> None:
        """Point the hint to a version; readers look for later ones, so a failure here does no harm."""
        with suppress(OSError):
            temporary = home / f"{uuid.uuid4()}-{HINT}"
            temporary.write_text(str(version))
            # Hadoop's local file system verifies a checksum that it keeps beside the file.
            (home / f".{HINT}.crc").unlink(missing_ok=True)
            os.replace(temporary, home / HINT)
