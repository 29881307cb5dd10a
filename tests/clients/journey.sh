#!/usr/bin/env bash
# A contact is created and found again, and a refusal is told as such. Prints a JSON line for each.
set -euo pipefail

field() { python3 -c 'import json, sys; print(json.dumps({sys.argv[1]: eval(sys.argv[2], {}, json.load(sys.stdin))}))' "$1" "$2"; }

"$POSTRIDER" api createContact email=ann@example.com | field created contact_id
"$POSTRIDER" api listContacts limit:=1 | field found '[contact["contact_id"] for contact in contacts]'
{ "$POSTRIDER" api createContact 'email=nobody at all' || true; } | field refused error
