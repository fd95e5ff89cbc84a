"""Several test processes that share the files of one run: each takes the next file that nobody has taken yet.

On when ``FLOEPLAN_TEST_CLAIMS`` names a folder. A file is taken by making one of its name there, which only one process
can; its tests stay together, and every process has its own fixtures. Files are taken in the order they are collected:
those of the engines, which take longest, come first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain, groupby, pairwise
from pathlib import Path

import pytest

CLAIMS = "FLOEPLAN_TEST_CLAIMS"


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    folder = os.environ.pop(CLAIMS, None)  # test processes that tests start have files of their own
    if folder is None or session.testsfailed or session.config.option.collectonly:
        return None
    for item, following in pairwise(chain(_claimed(session.items, Path(folder)), [None])):
        assert item is not None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
    return True


def _claimed(items: list[pytest.Item], folder: Path) -> Iterator[pytest.Item]:
    for file, tests in groupby(items, lambda item: item.location[0]):
        if _claim(folder / file.replace(os.sep, "_")):
            yield from tests


def _claim(path: Path) -> bool:
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
