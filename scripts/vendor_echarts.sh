#!/usr/bin/env bash
# Fetch Apache ECharts again, as it is shipped with the explorer: scripts/vendor_echarts.sh [VERSION]
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=${1:-6.1.0}
TARGET=src/floeplan/explorer/static/vendor/echarts
SCRATCH=$(mktemp -d)
trap 'rm -rf "$SCRATCH"' EXIT

if ! command -v npm >/dev/null; then
    echo "vendor_echarts: npm is missing; install it with 'apt-get install npm' and run again" >&2
    exit 1
fi
(cd "$SCRATCH" && npm pack --silent "echarts@$VERSION" >/dev/null && tar -xzf "echarts-$VERSION.tgz")
mkdir -p "$TARGET"
cp "$SCRATCH/package/dist/echarts.min.js" "$SCRATCH/package/LICENSE" "$SCRATCH/package/NOTICE" "$TARGET/"
cp "$SCRATCH/package/licenses/LICENSE-d3" "$TARGET/"
cat >"$TARGET/README.md" <<TEXT
Apache ECharts $VERSION, unchanged: \`dist/echarts.min.js\` of the npm package \`echarts\`.
sha256 $(sha256sum "$TARGET/echarts.min.js" | cut -d ' ' -f 1)
Fetched by \`scripts/vendor_echarts.sh $VERSION\`.
TEXT
