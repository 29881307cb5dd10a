#!/usr/bin/env bash
# Throws generated requests, good and bad, at a whole running system and holds every answer against schemas/openapi.json:
# no 5xx, no status and no body that is not documented. All checks and all phases, the stateful one included.
#
#   tests/openapi/schemathesis.sh [further options of `st run`]
#
# Needs python3 and the binary (built here). What it finds is in target/schemathesis/report.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly version=4.32.5 validator=0.9.0
readonly work="$PWD/target/schemathesis"
mkdir -p "$work"

if [ ! -x "$work/venv/bin/st" ]; then
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install --quiet "schemathesis==$version" "openapi-spec-validator==$validator"
fi
"$work/venv/bin/openapi-spec-validator" --schema 3.1 schemas/openapi.json

cargo build --quiet --package postrider
readonly ready="$work/ready.json"
rm -f "$ready"
# One key makes all requests: no limit may stand in the way.
POSTRIDER_MESSAGE_RATE_PER_HOUR=0 target/debug/postrider dev --ephemeral --rate-limit-per-minute 0 --ready-file "$ready" \
    > "$work/dev.log" 2>&1 &
readonly dev=$!
trap 'kill -INT "$dev" 2> /dev/null || true; wait "$dev" || true' EXIT
for _ in $(seq 600); do
    [ -s "$ready" ] && break
    kill -0 "$dev" 2> /dev/null || { tail -20 "$work/dev.log"; exit 1; }
    sleep 0.2
done

field() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$ready" "$1"; }

export READY_FILE="$ready" LIVE_KEY HEALTH_KEY PYTHONPATH="$PWD/tests/openapi" SCHEMATHESIS_HOOKS=schemathesis_hooks
LIVE_KEY="$(field live_key)"
HEALTH_KEY="$(target/debug/postrider key --database-url "$(field database_url)" issue --json \
    --product "$(field product)" --scopes platform:health:read | sed -n 's/.*"key":"\([^"]*\)".*/\1/p')"
"$work/venv/bin/st" --config-file tests/openapi/schemathesis.toml run schemas/openapi.json --url "$(field base_url)" \
    --workers 2 --report junit,json --report-dir "$work/report" "$@"
