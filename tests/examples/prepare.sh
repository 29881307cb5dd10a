#!/usr/bin/env bash
# Fetches what the examples and ops/nats/try.py need: the NATS clients of Python or Node, pinned, from PyPI or npm.
#
#   tests/examples/prepare.sh python|node
#
# Prints what to put before the scripts: a Python that has them, or the directory with node_modules. Ends with 77, and says so, when
# they cannot be fetched.
set -euo pipefail
cd "$(dirname "$0")"

readonly language="$1" work="$PWD/../../target/nats-examples/$1"
mkdir -p "$work"
# Two tests may need them at once.
exec 9> "$work/.lock"
if command -v flock > /dev/null; then flock 9; fi
case "$language" in
    python)
        if ! cmp --silent python/requirements.txt "$work/.installed"; then
            { python3 -m venv "$work/venv" || { python3 -m pip install --quiet --disable-pip-version-check virtualenv \
                && python3 -m virtualenv --quiet "$work/venv"; }; } > "$work/pip.log" 2>&1 \
                || { echo "skipped: python3 has neither venv nor pip"; exit 77; }
            "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
                -r python/requirements.txt >> "$work/pip.log" 2>&1 \
                || { echo "skipped: pip could not fetch the packages"; exit 77; }
            cp python/requirements.txt "$work/.installed"
        fi
        echo "$work/venv/bin/python" ;;
    node)
        if ! cmp --silent node/package-lock.json "$work/.installed"; then
            cp node/package.json node/package-lock.json "$work/"
            (cd "$work" && npm ci --ignore-scripts --no-audit --no-fund > npm.log 2>&1) \
                || { echo "skipped: npm could not fetch the packages"; exit 77; }
            cp node/package-lock.json "$work/.installed"
        fi
        # Node looks for packages beside the scripts and above.
        cp node/*.mjs "$work/"
        echo "$work" ;;
esac
