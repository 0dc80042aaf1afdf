#!/usr/bin/env bash
# The fast tests of model, parallel and optim, and the dry run of the GPU benchmark, under every torch that hornbook
# supports, each in a venv of its own: .venv-torch-2.11.0, ... Arguments are versions. pip takes the build that its
# index has: for Linux that is the CUDA build, of some gigabytes.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=()

try() { # of one version, its environment, its tests and the dry run
    local venv=".venv-torch-$1" results status=0
    sed "s/^torch==.*/torch==$1/" constraints.txt >"$venv.txt"
    make "$venv/.develop" VENV="$venv" CONSTRAINTS="$venv.txt" || return 1
    "$venv/bin/python" -m pytest -n 2 --dist worksteal tests/model tests/parallel tests/optim || status=1
    results=$(mktemp -d)
    "$venv/bin/python" -m benchmarks.gpu --dry-run --out "$results" || status=1
    rm -rf "$results"
    return $status
}

[ $# -gt 0 ] || set -- 2.11.0 2.13.0
for version in "$@"; do
    echo "== torch $version"
    try "$version" || failed+=("$version")
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}"
    exit 1
fi
