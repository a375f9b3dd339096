# Scenes for the setups of the pages: shell functions that the terminal of tests/docs/terminal.py knows.

config() { # the config file of the examples
    mkdir -p ~/.config/fleetgate
    cat >~/.config/fleetgate/config.toml <<'END'
models = ["anthropic/claude-opus-4-6"]

[agents]
host = 6
"anthropic/claude-opus-*" = 2

[requests]
umans = { cap = 4, cooldown = "350ms", on_429 = "step", max_hold = "30m" }
END
}

until_true() { # wait until a command succeeds, for at most twenty seconds
    for _ in $(seq 200); do
        if eval "$1"; then return; fi
        sleep 0.1
    done
    echo "never true: $1"
}

running() { # whether this many fake agents have started: each leaves a file
    [ "$(find ~/.started -type f | wc -l)" = "$1" ]
}

waiting() { # whether this many runs have said that they wait
    [ "$(grep -c 'waiting:' ~/.runs)" = "$1" ]
}

id_of() { # the id of the agent or ticket whose command contains this text
    { fleetgate ps --json; fleetgate queue --json; } | python3 -c '
import json, sys
for line in sys.stdin:
    listing = json.loads(line)
    for row in listing.get("leases", []) + listing.get("tickets", []):
        if sys.argv[1] in (row.get("command") or ""):
            print(row["id"])
' "$1"
}

busy() { # two agents are running on the two Opus slots, and two are waiting
    config
    fleetgate run -m anthropic/claude-opus-4-6 -- opencode run "fix the flaky parser test" 2>>~/.runs &
    until_true "running 1"
    fleetgate run -m anthropic/claude-opus-4-6 -- claude -p "write the release notes" 2>>~/.runs &
    until_true "running 2"
    fleetgate run -m anthropic/claude-opus-4-6 --project web -- opencode run "review the migration" 2>>~/.runs &
    until_true "waiting 1"
    fleetgate run -m anthropic/claude-opus-4-6 -- claude -p "triage the issues" 2>>~/.runs &
    until_true "waiting 2"
}

umans_call() { # a script holds a slot of umans
    bash -c 'fleetgate acquire -m umans/coder --kind requests --pid $$ >/dev/null; exec sleep 60' &
    until_true "fleetgate ps --json | grep -q umans/coder"
}

some_jobs() { # one job has failed, one is running
    config
    fleetgate submit --name nightly --key nightly --retries 0 -- sh -c 'echo building; echo oops >&2; exit 3'
    fleetgate submit -m anthropic/claude-sonnet-4-6 --name docs -- claude -p 'update the docs'
    fleetgate worker -n 2 &
    until_true "fleetgate jobs --json --state failed | grep -q nightly"
    until_true "running 1"
} >/dev/null 2>&1

job_until_wait() { # the agent of a job stays until `fleetgate wait` is typed
    config
    export FAKE_AGENT_UNTIL=~/.may_end
    fleetgate() {
        if [ "$1" = wait ]; then touch ~/.may_end; fi
        command fleetgate "$@"
    }
}

many_jobs() { # running, waiting for a retry, waiting for a slot, held, succeeded, failed
    some_jobs
    # It is limited for so long that a slow machine is done with the page before the retry.
    fleetgate submit --name flaky -- sh -c 'echo "rate limit exceeded, retry in 20 minutes" >&2; exit 1'
    fleetgate submit --name deploy --confirm -- true
    fleetgate submit --name hello -- echo hello
    until_true "fleetgate jobs --json --state held | grep -q deploy"
    until_true "fleetgate jobs --json --state succeeded | grep -q hello"
    until_true "fleetgate jobs --json --state queued | grep -q retry_pause"
} >/dev/null 2>&1

two_accounts() { # two accounts of one provider: an agent runs on the first, the second is backed off
    config
    mkdir -p ~/.claude-work
    echo '{"claudeAiOauth": {"accessToken": "not-a-token"}}' >~/.claude-work/.credentials.json
    printf '[providers."anthropic@work"]\nenv = { CLAUDE_CONFIG_DIR = "~/.claude-work" }\n' >>~/.config/fleetgate/config.toml
    fleetgate run -m anthropic/claude-opus-4-6 -- claude -p "write the release notes" 2>>~/.runs &
    until_true "running 1"
    fleetgate observe --window 5h --used 63% --resets-in 2h10m 2>/dev/null
    fleetgate observe --account anthropic@work --window 5h --used 12% --resets-in 4h 2>/dev/null
    fleetgate backoff set anthropic@work quota 1h >/dev/null
}
