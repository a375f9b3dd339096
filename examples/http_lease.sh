#!/bin/sh
# A lease over HTTP. The service must be running: fleetgate serve
# Usage: examples/http_lease.sh [URL]
set -eu
url=${1:-http://127.0.0.1:4180}
token=$(cat "${FLEETGATE_HOME:-$HOME/.local/state/fleetgate}/token")
id="example-$$"                       # any name of your own: asking twice with it gets one slot
auth="authorization: Bearer $token" json='content-type: application/json'
curl -sf "$url/v1/leases" -H "$auth" -H "$json" -d "{\"models\": [\"umans/coder\"], \"wait_s\": 25, \"id\": \"$id\"}" >/dev/null
echo "got a slot"
# … the call to the provider …
curl -sf "$url/v1/leases/$id/release" -H "$auth" -H "$json" -d '{"outcome": "ok"}' >/dev/null
echo "released it"
