#!/usr/bin/env bash
# The README's two commands in the places where people run them, each in a clone of HEAD under build/places. Arguments
# are names of places, none means all:
#   name       a folder named hornbook, as git clone makes it
#   blank      a folder with a blank in its path
#   letters    a folder with letters beyond ASCII in its path
#   compiler   no C or C++ compiler on the PATH
#   host       a host name that does not resolve (needs root)
#   read-only  an ordinary user who cannot write into the source tree; root makes .venv (needs root)
# TESTS: arguments of pytest; none means all fast tests. PYTHON: the interpreter, which the ordinary user may read.
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHON="${PYTHON:-python3}" TESTS="${TESTS:-}"
source=$PWD places=$PWD/build/places
failed=()

demo='make demo PYTHON="$PYTHON"'
tests='make .venv/.develop PYTHON="$PYTHON" && .venv/bin/python -m pytest -n 2 --dist worksteal $TESTS'

clone() { # into a folder of places, and prints it
    mkdir -p "$places/$(dirname "$1")"
    rm -rf "${places:?}/$1"
    git clone --quiet "$source" "$places/$1"
    echo "$places/$1"
}

tools_without_compilers() { # prints a folder with a link to each program on the PATH that compiles nothing
    local folder=$places/tools program
    mkdir -p "$folder"
    for program in ${PATH//:/\/* }/*; do
        case ${program##*/} in
        *gcc* | *g++* | *clang* | cc | c++ | c89* | c99* | tcc) ;;
        *) ln -sf "$program" "$folder/" ;;
        esac
    done
    echo "$folder"
}

run_in() { # place
    case $1 in
    name) cd "$(clone name/hornbook)" && bash -c "$demo && $tests" ;;
    blank) cd "$(clone 'two words/hornbook')" && bash -c "$demo && $tests" ;;
    letters) cd "$(clone 'Übungen/hornbook')" && bash -c "$demo && $tests" ;;
    compiler) cd "$(clone compiler/hornbook)" && PATH=$(tools_without_compilers) bash -c "$demo && $tests" ;;
    host) cd "$(clone host/hornbook)" && unshare --uts bash -c "hostname no-such-host && $demo && $tests" ;;
    read-only)
        cd "$(clone read-only/hornbook)" && make --silent .venv/.develop || return 1
        HOME=$(mktemp -d) && chmod 777 "$HOME" && export HOME
        setpriv --reuid=65534 --regid=65534 --clear-groups bash -c "! touch src && $demo && $tests"
        ;;
    *)
        echo "places: name, blank, letters, compiler, host, read-only"
        return 2
        ;;
    esac
}

[ $# -gt 0 ] || set -- name blank letters compiler host read-only
for place in "$@"; do
    echo "== $place"
    (run_in "$place") || failed+=("$place")
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}"
    exit 1
fi
