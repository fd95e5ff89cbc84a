"""Executors without the package: it is sent to them with its kernels; without what it needs, an error names that."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.servers import DRIVER, client, spark_cluster, spark_connect
from tests.support.spark.core_table import appended_in_tasks, failure, read_in_tasks, seen_by_tasks

pytestmark = pytest.mark.services

BARE_PYTHON = str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}")
LIBRARIES = str(Path(pa.__file__).parent.parent)
"""On ``PYTHONPATH`` links of editable installs are not followed, so this is all but the package itself."""


def test_the_package_is_sent_and_what_it_needs_is_named(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": (tmp_path / "warehouse").as_uri()}
    with spark_cluster(tmp_path / "work", workers=1) as url:
        libraries = DRIVER | {"spark.executorEnv.PYTHONPATH": LIBRARIES}
        with client(url, libraries, python=BARE_PYTHON) as lacking_package:
            assert lacking_package.run(seen_by_tasks) == (False, False)
            assert lacking_package.run(read_in_tasks, properties) == list(range(120))
            assert lacking_package.run(seen_by_tasks) == (True, True)
            assert lacking_package.run(appended_in_tasks, properties) == list(range(1000, 1010))
        with client(url, DRIVER, python=BARE_PYTHON) as lacking_everything:
            said = lacking_everything.run(failure, properties)
    assert "Spark's executors have no Python module" in said
    assert "install floeplan there" in said


def test_the_package_and_its_kernels_are_sent_through_connect(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": (tmp_path / "warehouse").as_uri()}
    bare = {"PYSPARK_PYTHON": BARE_PYTHON, "PYTHONPATH": LIBRARIES}
    with spark_connect({}, bare) as url, client(url) as connected:
        assert connected.run(seen_by_tasks) == (False, False)
        assert connected.run(read_in_tasks, properties) == list(range(120))
        assert connected.run(seen_by_tasks) == (True, True)
