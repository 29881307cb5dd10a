#!/usr/bin/env bash
# Parses schemas/asyncapi.json with the official parser (@asyncapi/parser), as the tools of others will.
#
#   tests/asyncapi/check.sh
#
# Needs node and npm. Ends with 77, and says so, when the packages cannot be fetched.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly work="$PWD/target/asyncapi-check"
mkdir -p "$work"
cp tests/asyncapi/{package.json,package-lock.json,check.mjs} "$work/"
cd "$work"
if ! cmp --silent package-lock.json node_modules/.installed; then
    npm ci --ignore-scripts --no-audit --no-fund > npm.log 2>&1 || { echo "skipped: npm could not fetch the packages"; exit 77; }
    cp package-lock.json node_modules/.installed
fi
node check.mjs "$OLDPWD/schemas/asyncapi.json"
