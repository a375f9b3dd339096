#!/bin/sh
# Hold a slot as long as this script runs, whatever happens to it: `kill -9` frees the slot too.
set -eu
fleetgate acquire -m umans/coder --pid $$ >/dev/null
echo "running: $(fleetgate ps --json | grep -o umans/coder | head -n 1)"
