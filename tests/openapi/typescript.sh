#!/usr/bin/env bash
# Generates TypeScript types from schemas/openapi.json and compiles a small client against them, strictly.
#
#   tests/openapi/typescript.sh
#
# Needs node and npm. Ends with 77, and says so, when the packages cannot be fetched.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly work="$PWD/target/openapi-typescript"
mkdir -p "$work"
cp tests/openapi/typescript/{package.json,package-lock.json,tsconfig.json,client.ts} "$work/"
cd "$work"
if ! cmp --silent package-lock.json node_modules/.installed; then
    npm ci --ignore-scripts --no-audit --no-fund > npm.log 2>&1 || { echo "skipped: npm could not fetch the packages"; exit 77; }
    cp package-lock.json node_modules/.installed
fi
# A default means that a field may be left out, not that it must be given.
node_modules/.bin/openapi-typescript "$OLDPWD/schemas/openapi.json" --default-non-nullable=false --output api.ts
node_modules/.bin/tsc --project tsconfig.json
