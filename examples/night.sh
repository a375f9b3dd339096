#!/bin/sh
# Jobs for the night: submitted once, however often this script runs, and run by two worker processes.
set -eu
for issue in 7 8 9; do
    fleetgate submit --project night --name "issue-$issue" --key "issue-$issue" -m anthropic/claude-sonnet-4-6 -- \
        claude -p "work on issue $issue" >/dev/null 2>&1
done
fleetgate worker -n 2 2>/dev/null &
fleetgate wait issue-7 issue-8 issue-9 2>/dev/null && echo "all done"
kill $!
wait
