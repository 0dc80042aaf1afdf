#!/usr/bin/env bash
# The fast tests under every Python that hornbook says it runs on and that is installed here (on the PATH or by pyenv),
# each in a venv of its own: .venv-3.11, .venv-3.12, ... Arguments are versions, none means all. pip takes the torch
# that its index has for each: for Linux that is the CUDA build, of some gigabytes.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=()

find_python() { # prints the interpreter of a version
    local found
    for found in "$(command -v "python$1")" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
        if [ "$("$found" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$1" ]; then
            echo "$found"
            return
        fi
    done
    return 1
}

[ $# -gt 0 ] || set -- 3.11 3.12 3.13 3.14
for version in "$@"; do
    if python=$(find_python "$version"); then
        echo "python $version: $python"
        make test PYTHON="$python" VENV=".venv-$version" || failed+=("$version")
    else
        echo "python $version: skipped, it is not installed"
    fi
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}"
    exit 1
fi
