#!/usr/bin/env bash
# Fetches the published library a receiver is tried with: `standardwebhooks`, pinned, from PyPI or npm.
#
#   tests/webhooks/prepare.sh python|node
#
# Prints the directory it is in. Ends with 77, and says so, when it cannot be fetched.
set -euo pipefail
cd "$(dirname "$0")"

readonly language="$1" work="$PWD/../../target/webhook-receivers/$1"
mkdir -p "$work"
case "$language" in
    python)
        if ! cmp --silent requirements.txt "$work/.installed"; then
            python3 -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --upgrade \
                --target "$work" -r requirements.txt > "$work/pip.log" 2>&1 \
                || { echo "skipped: pip could not fetch the package"; exit 77; }
            cp requirements.txt "$work/.installed"
        fi ;;
    node)
        if ! cmp --silent package-lock.json "$work/.installed"; then
            cp package.json package-lock.json "$work/"
            (cd "$work" && npm ci --ignore-scripts --no-audit --no-fund > npm.log 2>&1) \
                || { echo "skipped: npm could not fetch the packages"; exit 77; }
            cp package-lock.json "$work/.installed"
        fi ;;
esac
echo "$work"
