#!/bin/sh
# One agent per issue. All are started at once; Fleetgate lets as many run as the cap allows.
# Usage: examples/issues.sh 101 102 103
set -eu
fleetgate cap set 'anthropic/claude-opus-*' 2 >/dev/null
for issue; do
    fleetgate run --name "issue-$issue" --project web -m anthropic/claude-opus-4-6 -- \
        claude -p --model opus "work on issue $issue" &
done
wait
fleetgate history --json | grep -c '"type":"released"'
