#!/usr/bin/env bash
# Build sdist and wheel into dist/ (the wheel from the sdist), then run the tests that need no Spark against the wheel, in
# a separate environment with the versions of requirements.lock.
set -euo pipefail
cd "$(dirname "$0")/.."
export FLOEPLAN_REQUIRE_KERNELS=1  # a kernel that does not compile fails the build

PYTHON=$PWD/.venv/bin/python
UV=$PWD/.venv/bin/uv
[ -x "$UV" ] || UV=uv
CLEAN=build/clean
TESTS=(tests/packaging/test_without_spark.py)
for name in prune scan_planning scan_read dml_delete_update rewrite_planner avro_decoder doctor spec_upgrade sql_parse lift evaluate; do
    TESTS+=("tests/unit/test_$name.py")
done

say() { printf 'package: %s\n' "$*"; }
[ ! -s /etc/ssl/certs/ca-certificates.crt ] || export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1}

rm -rf dist build/lib build/bdist.* "$CLEAN"
"$UV" build --quiet --no-build-isolation --python "$PYTHON" --out-dir dist
say "built $(cd dist && echo *.whl *.tar.gz)"

"$UV" venv --quiet --python "$PYTHON" "$CLEAN"
VIRTUAL_ENV=$PWD/$CLEAN "$UV" pip install --quiet --constraint requirements.lock dist/*.whl pytest hypothesis fastavro
cp -r tests scripts pyproject.toml "$CLEAN/"
rm -rf "$CLEAN/tests/__pycache__"
cd "$CLEAN"
bin/python - <<'CHECK'
import importlib.util
from importlib.metadata import files
from pathlib import Path

import floeplan
import floeplan.metadata.avro._avro_decode

assert importlib.util.find_spec("pyspark") is None
assert "site-packages" in floeplan.__file__, floeplan.__file__
shipped = {str(file) for file in files("floeplan")}
assert {"floeplan/py.typed", "floeplan/explorer/static/index.html", "pyspark_floeplan/__init__.py"} <= shipped
assert not [name for name in shipped if name.endswith((".c", ".pyc")) or name.startswith("tests")]
CHECK
CI=true bin/python -m pytest -q --durations=0 --durations-min=20 "${TESTS[@]}"
bin/floeplan --version
say "the wheel works without Spark"
