"""``remove_orphans``: files at the location of a table that nothing refers to, such as those of crashed commits.

Rule: a file is an orphan when it lies under the table's location, is older than the age guard, and no snapshot and no
metadata of the table name it. Files are listed first and the table is loaded after that, so that files committed
in between are known.

Fail-safe: the age guard (3 days by default, at least 1) protects files of running commits. Before anything is deleted,
a probe file is written to read the store's clock, and the earlier of the two clocks counts. Locations are compared as
scheme, authority and path; when the table names a listed file under another scheme or authority it cannot be determined
whether these are the same file, and the run is refused. Names that begin with a dot or an underscore are left alone,
and so is every folder in which another table has its metadata. Nothing is removed unless ``dry_run`` is off.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyarrow.fs import FileSelector, FileSystem, FileType
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import StaticTable, Table

from floeplan.catalog import DeferredFileIO, load_table
from floeplan.display import Displayed
from floeplan.errors import CorruptMetadataError, InvalidOptionError, UnsupportedError
from floeplan.maintenance.expire import reachable_files, refuse_shared_files
from floeplan.metadata.files import Location, TableFiles, TableLocations, writing
from floeplan.times import age_text, in_utc

_log = logging.getLogger(__name__)

_METADATA_SUFFIXES = (".metadata.json", ".metadata.json.gz")
AGE_GUARD = timedelta(days=3)
LEAST_AGE = timedelta(days=1)


@dataclass(frozen=True, slots=True, repr=False)
class OrphansResult(Displayed):
    """What was found and deleted, or would be.

    Attributes:
        files_listed: Files at the location of the table.
        files_reachable: Those that the table refers to.
        files_too_young: Unreferenced files that the age guard protects.
        orphans: Files that nothing refers to.
        bytes: Their size.
        removed: Those that were deleted.
        dry_run: Whether nothing was removed.
    """

    files_listed: int
    files_reachable: int
    files_too_young: int
    orphans: tuple[str, ...]
    bytes: int
    removed: tuple[str, ...]
    dry_run: bool

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return found | {"orphans": list(self.orphans), "removed": list(self.removed)}


def remove_orphans(
    table: Table | str,
    *,
    older_than: timedelta | datetime = AGE_GUARD,
    dry_run: bool = True,
    trust_lists: bool = False,
    now_s: float | None = None,
    catalog: str | Catalog | None = None,
) -> OrphansResult:
    """Find files that a table does not refer to, and delete them unless it is a dry run.

    Args:
        table: The table, or its name.
        older_than: How old a file must be, or the time before which it must have been written.
        dry_run: Only report what would be deleted.
        trust_lists: Continue if a manifest list has fewer files than its snapshot summary reports.
        now_s: The current time in seconds since 1970; by default the earlier of this machine's and the store's clock.
        catalog: A PyIceberg catalog or the name of one, for a table given by name.

    Raises:
        InvalidOptionError: The age guard is less than a day.
        UnsupportedError: The table's files may belong to others, or its store cannot be listed.
        CorruptMetadataError: The table names a file under another scheme or authority than its location has, or a
            manifest list that is not trusted may be truncated.
    """
    age, fix = older_than, "give an earlier time"
    if isinstance(age, datetime):
        shown, age = in_utc(age).isoformat(), datetime.now(UTC) - in_utc(age)
    else:
        shown, fix = age_text(age), "raise the age"
    if age < LEAST_AGE:
        raise InvalidOptionError(
            f"older_than is {shown}, but files younger than {LEAST_AGE.days} day may belong to a running commit; {fix}",
            context={"older_than_s": age.total_seconds()},
        )
    loaded = load_table(table, catalog)
    refuse_shared_files(loaded.metadata, "remove orphans")
    # Listed first, loaded after that: files committed in between are reachable.
    listed = _listed(loaded)
    newest = loaded if isinstance(loaded, StaticTable) else loaded.catalog.load_table(loaded.name())
    reachable = set[str]()
    for name in reachable_files(newest, trust_lists=trust_lists):  # parsed, all of them take three times the memory
        location = Location.parse(name.as_py())
        found = listed.get(location.path)
        if found is None:
            continue
        if found.location != location:
            named, seen = (f"{one.scheme}://{one.authority}{one.path}" for one in (location, found.location))
            raise CorruptMetadataError(
                f"the table references {named}, and {seen} was listed: cannot determine whether these are the same "
                "file; nothing was removed",
                context={"file": named, "listed": seen},
            )
        reachable.add(found.location.path)  # the string of the listing, not another one
    unknown = [file for path, file in listed.items() if path not in reachable]
    if now_s is None:
        now_s = time.time() if dry_run or not unknown else _earlier_clock(loaded)
    before = now_s - age.total_seconds()
    old = [file for file in unknown if file.modified_s < before]
    paths = tuple(sorted(file.path for file in old))
    return OrphansResult(
        files_listed=len(listed),
        files_reachable=len(listed) - len(unknown),
        files_too_young=len(unknown) - len(old),
        orphans=paths,
        bytes=sum(file.bytes for file in old),
        removed=() if dry_run else TableFiles.of(newest).remove(paths),
        dry_run=dry_run,
    )


@dataclass(frozen=True, slots=True)
class _Listed:
    """A listed file."""

    path: str
    location: Location
    modified_s: float
    bytes: int


def _listed(table: Table) -> Mapping[str, _Listed]:
    """Files under the location of the table, by normalized path; named as it is, and not those that a link leads to."""
    locations = TableLocations.of(table.metadata)
    home = table.metadata.location.rstrip("/")
    system, folder = _file_system(table, home)
    infos = system.get_file_info(FileSelector(folder, allow_not_found=True, recursive=True))
    names = [info.path.removeprefix(folder.rstrip("/") + "/") for info in infos]
    others, found = _other_tables(table, home, names), {}
    for info, inside in zip(infos, names, strict=True):
        if info.type is not FileType.File or inside == info.path or inside.startswith(others):
            continue
        # Hidden names begin with a dot or an underscore; so may partition folders.
        *folders, name = inside.split("/")
        if name == "version-hint.text" or any(
            part.startswith((".", "_")) and "=" not in part for part in (*folders, name)
        ):
            continue
        path = f"{home}/{inside}"
        if not locations.hold(path):
            continue
        location = Location.parse(path)
        modified_s = (info.mtime_ns or time.time_ns()) / 1e9
        found[location.path] = _Listed(path, location, modified_s, info.size or 0)
    return found


def _other_tables(table: Table, home: str, names: Iterable[str]) -> tuple[str, ...]:
    """The folders, with a final slash, that hold other tables: those around the folders of metadata files."""
    known = (table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log))
    own = {Location.parse(path.rpartition("/")[0]).path for path in (f"{home}/", f"{home}/metadata/", *known)}
    written = {name.rpartition("/")[0] for name in names if name.endswith(_METADATA_SUFFIXES)}
    others = sorted(folder for folder in written if Location.parse(f"{home}/{folder}").path not in own)
    for folder in others:
        _log.warning("%s/%s has metadata of another table: its files are left alone", home, folder)
    return tuple(f"{folder.rpartition('/')[0] or folder}/" for folder in others)


def _earlier_clock(table: Table) -> float:
    """The earlier of this machine's and the store's time: with a later one, files of running commits could look old."""
    home = table.metadata.location.rstrip("/")
    system, folder = _file_system(table, home)
    probe = f"{folder.rstrip('/')}/.floeplan-{uuid.uuid4()}"
    with writing(home):
        with system.open_output_stream(probe) as stream:
            stream.write(b"probe")
        try:
            modified_ns = system.get_file_info(probe).mtime_ns
        finally:
            system.delete_file(probe)
    return min(time.time(), (modified_ns or time.time_ns()) / 1e9)


def _file_system(table: Table, home: str) -> tuple[FileSystem, str]:
    io = table.io.chosen if isinstance(table.io, DeferredFileIO) else table.io
    if not isinstance(io, PyArrowFileIO):
        raise UnsupportedError(
            f"{type(io).__name__} cannot list files: set py-io-impl to {PyArrowFileIO.__module__}."
            f"{PyArrowFileIO.__name__}",
            context={"location": home},
        )
    scheme, authority, path = PyArrowFileIO.parse_location(home, io.properties)
    return io.fs_by_scheme(scheme, authority), path
