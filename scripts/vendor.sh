#!/usr/bin/env bash
# Fetches the JavaScript that the dashboard ships, with npm, and compares it with the checksums below.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$PWD/src/hornbook/studio/live/page/vendor
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm pack --silent htm@3.1.1 uplot@1.6.32 > /dev/null
for archive in *.tgz; do mkdir "${archive%.tgz}" && tar -xzf "$archive" -C "${archive%.tgz}"; done
cp htm-3.1.1/package/preact/standalone.module.js uplot-1.6.32/package/dist/uPlot.{iife.min.js,min.css} "$target"
cd "$target"
sha256sum --check <<'SUMS'
72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7  standalone.module.js
19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f  uPlot.iife.min.js
df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04  uPlot.min.css
SUMS
