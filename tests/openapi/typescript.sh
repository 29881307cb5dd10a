#!/usr/bin/env bash
# Compiles a program against the TypeScript client that schemas/clients makes, strictly.
#
#   tests/openapi/typescript.sh
#
# Needs node and npm. Ends with 77, and says so, when the packages cannot be fetched.
set -euo pipefail
cd "$(dirname "$0")/../.."

built="$(schemas/clients/build typescript)" || { status=$?; echo "$built"; exit "$status"; }
mkdir -p "$built/check"
cp tests/openapi/{client.ts,tsconfig.json} "$built/check/"
"$built/node_modules/.bin/tsc" --project "$built/check/tsconfig.json"
