"""Progress of a rewrite: a bar on a terminal, or lines of JSON.

Rule: progress goes to stderr, never to stdout. Nothing depends on it.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import IO

from rich import progress as rich_progress
from rich.console import Console
from rich.text import Text

JSON_SECONDS = 1.0
"""Time between two lines of JSON while a group is read."""


class Progress:
    """Receives progress reports; this one ignores them."""

    def start(self, groups: int, size: int) -> None:
        """The rewrite starts with this many groups and bytes."""

    def read(self, size: int) -> None:
        """These further bytes of old files were read; called by several threads, and not when Spark reads them."""

    def done(self, groups: int, size: int, failed: int) -> None:
        """Groups and bytes finished so far, and how many of the groups failed."""

    def committed(self, snapshot_id: int, groups: int) -> None:
        """A snapshot was committed with this many groups."""

    def stop(self) -> None:
        """The rewrite has ended."""


NO_PROGRESS = Progress()


class JsonProgress(Progress):
    """One line of JSON per report."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream or sys.stderr
        self._started = time.monotonic()
        self._groups = self._bytes = self._read = self._done = self._failed = 0
        self._lock = threading.Lock()
        self._next = self._started + JSON_SECONDS

    def start(self, groups: int, size: int) -> None:
        self._groups, self._bytes = groups, size
        self._write("start", groups=groups, bytes=size)

    def read(self, size: int) -> None:
        with self._lock:
            self._read += size
            if time.monotonic() >= self._next:  # a line per row group would be too many
                self._next = time.monotonic() + JSON_SECONDS
                self._report(min(self._read, self._bytes))

    def done(self, groups: int, size: int, failed: int) -> None:
        with self._lock:
            self._done, self._failed = groups, failed
            self._report(size)

    def _report(self, size: int) -> None:
        seconds = max(time.monotonic() - self._started, 1e-9)
        rate = size / seconds
        self._write(
            "progress",
            groups_done=self._done,
            groups=self._groups,
            groups_failed=self._failed,
            bytes_done=size,
            bytes=self._bytes,
            bytes_per_second=round(rate),
            eta_seconds=round((self._bytes - size) / rate, 1) if rate else None,
        )

    def committed(self, snapshot_id: int, groups: int) -> None:
        self._write("committed", snapshot_id=snapshot_id, groups=groups)

    def _write(self, event: str, **fields: object) -> None:
        seconds = round(time.monotonic() - self._started, 3)
        self._stream.write(json.dumps({"event": event, "seconds": seconds, **fields}) + "\n")
        self._stream.flush()


class BarProgress(Progress):
    """A bar on a terminal: groups, bytes, rate and time left."""

    def __init__(self, console: Console | None = None) -> None:
        self._bar = rich_progress.Progress(
            rich_progress.TextColumn("{task.description}"),
            rich_progress.BarColumn(),
            _Groups(),
            rich_progress.DownloadColumn(binary_units=True),
            rich_progress.TransferSpeedColumn(),
            rich_progress.TimeRemainingColumn(),
            console=console or Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("rewriting", total=None, groups=0, of=0, failed=0)
        self._read = self._bytes = 0
        self._lock = threading.Lock()

    def start(self, groups: int, size: int) -> None:
        self._bytes = size
        self._bar.update(self._task, total=size, of=groups)
        self._bar.start()

    def read(self, size: int) -> None:
        with self._lock:
            self._read = min(self._read + size, self._bytes)
            self._bar.update(self._task, completed=self._read)

    def done(self, groups: int, size: int, failed: int) -> None:
        with self._lock:
            self._read = max(self._read, size)
            self._bar.update(self._task, completed=self._read, groups=groups, failed=failed)

    def committed(self, snapshot_id: int, groups: int) -> None:
        self._bar.update(self._task, description=f"snapshot {snapshot_id}")

    def stop(self) -> None:
        self._bar.stop()


class _Groups(rich_progress.ProgressColumn):
    """Groups done, of all, and how many failed."""

    def render(self, task: rich_progress.Task) -> Text:
        failed = f", {task.fields['failed']} failed" if task.fields["failed"] else ""
        return Text(f"{task.fields['groups']}/{task.fields['of']} groups{failed}")
