#!/usr/bin/env bash
# Create ./.venv: missing system packages, the Python packages of requirements.lock by hash, Floeplan itself with its
# compiled kernels, and the jars that the tests need. Each step records the hash of its inputs and is skipped while they
# are unchanged. `setup.sh run` makes only what running Floeplan takes: no services, jars or browser of the tests, and it
# needs root only if Java, Python or a compiler is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
export FLOEPLAN_REQUIRE_KERNELS=1  # a kernel that does not compile fails the set-up

INSTALLER=${INSTALLER:-uv}
PURPOSE=${1:-develop}
VENV=.venv
STAMPS=$VENV/.stamps

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# --- system packages --------------------------------------------------------------------------------------------------

find_python() {
    local name
    for name in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
}

has_java() {
    local java=${JAVA_HOME:+$JAVA_HOME/bin/}java version
    version=$("$java" -version 2>&1 | sed -nE 's/.*version "([0-9]+).*/\1/p' | head -n 1) || return 1
    [ "${version:-0}" -ge 17 ]
}

has_postgres() { command -v postgres >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null; }
has_services() { has_postgres && command -v mvn >/dev/null && command -v javac >/dev/null; }

# PostgreSQL, and Maven for the REST catalog server: only tests/services and tests/faults need them.
service_packages() {
    has_postgres || apt_install postgresql || say "PostgreSQL is missing and cannot be installed: tests/services and tests/faults will fail"
    # tests/engines compile a reader of v4 manifests against Iceberg's jar
    command -v javac >/dev/null || apt_install default-jdk-headless || say "javac is missing and cannot be installed: tests/engines/test_v4_*.py will fail"
    command -v mvn >/dev/null || apt_install maven || say "Maven is missing and cannot be installed: tests/services and tests/faults will fail"
}

compiler() { command -v cc || command -v gcc; }
has_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }
has_headers() { "$1" -c 'import sysconfig, os, sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'; }

apt_install() {
    local sudo=
    [ "$(id -u)" -eq 0 ] || sudo="sudo"
    command -v apt-get >/dev/null || return 1
    [ -z "$sudo" ] || command -v sudo >/dev/null || return 1
    say "installing $* with apt-get"
    $sudo apt-get update -qq || true
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

java_package() {
    if apt-cache show openjdk-17-jre-headless >/dev/null 2>&1; then
        echo openjdk-17-jre-headless
    else
        echo default-jre-headless
    fi
}

system_packages() {
    if ! has_java; then
        apt_install "$(java_package)" || true
        has_java || die "Spark needs Java 17 or newer: install a Java runtime (or set JAVA_HOME) and run again"
    fi
    python=$(find_python)
    if [ -z "$python" ]; then
        apt_install python3.11 python3.11-venv python3.11-dev || true
        python=$(find_python)
        [ -n "$python" ] || die "Floeplan needs Python 3.11 or newer: install it, or set PYTHON to it, and run again"
    fi
    local packaged=python3
    [[ $python =~ python3\.[0-9]+$ ]] && packaged=${python##*/}
    has_venv "$python" || apt_install "$packaged-venv" || die "$python cannot create virtual environments: install $packaged-venv and run again"
    compiler >/dev/null || apt_install gcc libc6-dev || die "the kernels need a C compiler: install gcc and run again"
    has_headers "$python" || apt_install "$packaged-dev" || die "the kernels need Python's headers: install $packaged-dev and run again"
}

# The explorer is tested in a browser; its screenshots need a font.
ensure_chromium() {
    command -v chromium >/dev/null || apt_install chromium fonts-dejavu-core ||
        say "Chromium is missing and cannot be installed: tests/explorer will fail"
}

# --- the environment --------------------------------------------------------------------------------------------------

digest() { cat "$@" | sha256sum | cut -d ' ' -f 1; }
is_done() { [ "$(cat "$STAMPS/$1" 2>/dev/null)" = "$2" ]; }
mark_done() { mkdir -p "$STAMPS" && echo "$2" >"$STAMPS/$1"; }

ensure_pip() { "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || "$VENV/bin/python" -m ensurepip >/dev/null; }
pip_install() { "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --use-pep517 "$@"; }
uv_pip() { VIRTUAL_ENV=$PWD/$VENV "$VENV/bin/uv" pip "$@" --quiet; }

# uv uses the certificates of the system, like pip: a proxy may have its own.
[ ! -s /etc/ssl/certs/ca-certificates.crt ] || export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1}

# uv itself is installed by the version and the hashes in the lock file.
ensure_uv() {
    [ -x "$VENV/bin/uv" ] && return
    ensure_pip
    pip_install --require-hashes -r <(sed -n '/^uv==/,/[^\\]$/p' requirements.lock)
}

python_packages() {
    local stamp
    stamp=$(digest requirements.lock)-$INSTALLER
    is_done packages "$stamp" && return
    say "installing the packages of requirements.lock with $INSTALLER"
    case $INSTALLER in
        uv) ensure_uv && uv_pip sync --require-hashes requirements.lock ;;
        pip) ensure_pip && pip_install --require-hashes -r requirements.lock ;;
        *) die "INSTALLER is '$INSTALLER' but must be uv or pip" ;;
    esac
    rm -f "$STAMPS/floeplan"
    mark_done packages "$stamp"
}

kernels() { find src -name '_*.pyx' | sort; }

floeplan() {
    local stamp editable=(--no-deps --no-build-isolation -e .)
    stamp=$(digest pyproject.toml setup.py $(kernels) $(find src -name '*.pxd' | sort))-$(compiler || echo none)
    is_done floeplan "$stamp" && return
    say "installing floeplan and compiling its kernels"
    find src -name '_*.so' -delete
    if [ "$INSTALLER" = uv ]; then uv_pip install "${editable[@]}"; else pip_install "${editable[@]}"; fi
    local kernel
    for kernel in $(kernels); do
        compgen -G "${kernel%.pyx}.*.so" >/dev/null || die "$kernel was not compiled"
    done
    mark_done floeplan "$stamp"
}

if [ ! -e "$VENV/bin/python" ] || ! has_java; then
    system_packages
fi
if [ ! -e "$VENV/bin/python" ]; then
    say "creating $VENV with $($python --version)"
    "$python" -m venv "$VENV"
fi
python_packages
floeplan
if [ "$PURPOSE" = run ]; then
    say "ready: $VENV/bin/floeplan"
    exit
fi
has_services || service_packages
"$VENV/bin/python" scripts/fetch_jars.py
"$VENV/bin/python" scripts/share_classes.py
! has_services || "$VENV/bin/python" scripts/fetch_rest_catalog.py ||
    say "the REST catalog server cannot be fetched: tests/services and tests/faults will fail"
ensure_chromium
say "ready: $VENV/bin/floeplan"
