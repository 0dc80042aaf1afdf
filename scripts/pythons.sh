#!/usr/bin/env bash
# The fast tests under every Python that hornbook says it runs on and that is installed here (on the PATH or by pyenv),
# each in a venv of its own: .venv-3.11, .venv-3.12, ... Arguments are versions, none means all. pip takes the torch
# that its index has for each: for Linux that is the CUDA build, of some gigabytes. The argument debian-13 runs them in
# a Debian 13 root with that system's Python, in build/debian-13; it needs debootstrap and root.
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

test_in_debian() { # a clone of HEAD in a root that has this machine's pip settings and certificates, and no more
    local root=build/debian-13 path
    if [ ! -e "$root/usr/bin/python3" ]; then
        debootstrap --variant=minbase \
            --include=ca-certificates,python3-venv,python3-dev,gcc,g++,make,git,procps trixie "$root" ${DEBIAN_MIRROR:-} || return 1
    fi
    for path in /etc/pip.conf /etc/resolv.conf /etc/ssl/certs/ca-certificates.crt; do
        [ ! -e "$path" ] || cp "$path" "$root$path"
    done
    rm -rf "$root/root/hornbook"
    git clone --quiet . "$root/root/hornbook"
    env -u PYTHONPATH -u VIRTUAL_ENV HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin unshare --mount --pid --fork sh -c '
        mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && mount -t tmpfs tmpfs "$0/tmp" &&
        chroot "$0" make -C /root/hornbook test' "$root"
}

[ $# -gt 0 ] || set -- 3.11 3.12 3.13 3.14
for version in "$@"; do
    if [ "$version" = debian-13 ]; then
        test_in_debian || failed+=("$version")
    elif python=$(find_python "$version"); then
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
