"""Pages of every evolved table of formats 1 to 4: everything is drawn, and file results match the plan."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from floeplan.explorer.documents import Footers, doctor_document, overview_document, plan_document, plan_for
from floeplan.explorer.file_document import file_document
from floeplan.explorer.site import to_json
from floeplan.explorer.view import TableView
from tests.support.spark.matrix import FEW, TABLES, Matrix, parametrized
from tests.support.spark.matrix_predicates import predicates

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog

pytestmark = pytest.mark.engines

FILES, PREDICATES = 3, 24
"""Files per table and predicate, and the step between the predicates of a table."""


@pytest.mark.parametrize("name", parametrized(few=FEW))
def test_a_table_is_drawn_and_its_files_match_the_plan(name: str, matrix: Matrix, local_catalog: SqlCatalog) -> None:
    made = matrix.table(name)
    view = TableView.of(local_catalog.load_table(made.identifier))
    cells = view.map.to_dict()["cells"]
    assert sum(cells["files"]) == len(view.files) > 0
    assert sum(cells["deletes"]) == view.delete_counts.sum()
    json.loads(to_json(overview_document(view)))
    json.loads(to_json(doctor_document(view.table)))
    for where in [predicate.text for predicate in predicates(made.columns)][
        TABLES.index(name) % PREDICATES :: PREDICATES
    ]:
        plan = plan_for(view, where, Footers.NO)
        assert sum(plan_document(view, where, plan)["kept_by_cell"]) == len(plan.files)
        kept = {file.path for file in plan.files}
        for path in view.files.path.to_pylist()[:: max(1, len(view.files) // FILES)]:
            document = file_document(view, path, where)
            assert (document["answer"] == "no row") == (path not in kept), (where, path)
            json.loads(to_json(document))
