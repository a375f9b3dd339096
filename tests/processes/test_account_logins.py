"""A run and a job use the login of the account that their slot is of (`env` of `[providers."NAME@ACCOUNT"]`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.processes.fleet import FLEETGATE, Fleet
from tests.processes.job_fleet import Jobs

pytestmark = pytest.mark.processes

SHOW = ["sh", "-c", 'echo "$FLEETGATE_MODEL|$CLAUDE_CONFIG_DIR|$0"', "{account}"]
ACCOUNTS = """
[agents]
host = 5
[providers."anthropic@work"]
env = { CLAUDE_CONFIG_DIR = "~/.claude-work" }
[providers."anthropic@spare"]
env = { CLAUDE_CONFIG_DIR = "~/{account}/claude" }
"""


def home(fleet: Fleet, *logins: str) -> dict[str, str]:
    """A home folder with these folders of logins."""
    folder = fleet.folder / "home"
    for name in logins:
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / ".credentials.json").write_text(json.dumps({"claudeAiOauth": {"accessToken": "t" * 30}}))
    folder.mkdir(exist_ok=True)
    return {"HOME": str(folder)}


def test_a_run_has_the_login_of_its_account_and_another_account_its_own(fleet: Fleet):
    fleet.configure(ACCOUNTS)
    env = home(fleet, ".claude-work") | {"CLAUDE_CONFIG_DIR": "/of/the/caller"}
    for model, login, account in (
        ("anthropic@work/claude-x", f"{env['HOME']}/.claude-work", "work"),
        ("anthropic@spare/claude-x", f"{env['HOME']}/spare/claude", "spare"),
        ("anthropic/claude-x", "/of/the/caller", "default"),
        ("anthropic@other/claude-x", "/of/the/caller", "other"),
    ):
        done = fleet.done("-m", model, "--", *SHOW, env=env)
        assert done.out == f"{model}|{login}|{account}\n"


def test_a_value_with_account_in_the_table_of_the_provider_is_for_all_its_accounts(fleet: Fleet):
    login = 'env = { CLAUDE_CONFIG_DIR = "~/logins/{account}", A = "a" }'
    fleet.configure(f"[agents]\nhost = 5\n[providers.anthropic]\n{login}\n")
    env = home(fleet)
    done = fleet.done("-m", "anthropic@work/claude-x", "--", *SHOW, env=env)
    assert done.out == f"anthropic@work/claude-x|{env['HOME']}/logins/work|work\n"
    done = fleet.done("-m", "anthropic@../claude-x", "--", *SHOW, env=env)
    assert done.out == "anthropic@../claude-x||..\n", "a name that leads out of the folder has no login"


def test_the_login_is_that_of_the_account_that_an_agent_moved_to(fleet: Fleet):
    """The first candidate's agent is refused before it does anything; the second starts with the other login."""
    fleet.configure(ACCOUNTS)
    agent = fleet.script(
        "claude",
        "#!/bin/sh\n"
        f'echo "$FLEETGATE_MODEL $CLAUDE_CONFIG_DIR" >> {fleet.folder}/seen\n'
        'case "$FLEETGATE_MODEL" in anthropic@work/*)\n'
        """echo '{"type":"result","subtype":"success","is_error":true,"api_error_status":429,"""
        """"result":"API Error: 429 rate_limit_error","session_id":"s"}'; exit 1;; esac\n"""
        """echo '{"type":"assistant","message":{"content":[]}}'\n"""
        """echo '{"type":"result","subtype":"success","is_error":false,"result":"done","session_id":"s"}'\n""",
    )
    env = home(fleet, ".claude-work", "spare/claude")
    models = "anthropic@work/claude-x,anthropic@spare/claude-x"
    claude = [str(agent), "-p", "hi", "--output-format", "stream-json"]
    run = fleet.start([*FLEETGATE, "run", "-m", models, "--", *claude], env)
    assert run.wait() == 0, run
    seen = Path(fleet.folder, "seen").read_text().splitlines()
    assert seen == [
        f"anthropic@work/claude-x {env['HOME']}/.claude-work",
        f"anthropic@spare/claude-x {env['HOME']}/spare/claude",
    ]


def test_a_job_has_the_login_of_its_account_at_each_attempt(fleet: Fleet):
    fleet.configure(ACCOUNTS)
    jobs, env = Jobs(fleet), home(fleet, ".claude-work")
    submit = [*FLEETGATE, "submit", "-m", "anthropic@work/claude-x", "--env", "CLAUDE_CONFIG_DIR=/of/the/job"]
    script = 'echo "$CLAUDE_CONFIG_DIR $FLEETGATE_ATTEMPT"; exit 3'
    submitted = fleet.start([*submit, "--retries", "1", "--", "sh", "-c", script], env)
    assert submitted.wait() == 0, submitted
    fleet.start([*FLEETGATE, "worker", "-n", "1"], env)
    ident = submitted.out.strip()
    assert jobs.ended(ident).state == "failed"
    login = f"{env['HOME']}/.claude-work"
    assert jobs.cli("logs", ident).out == f"{login} 1\n{login} 2\n"


def test_a_run_that_names_no_account_has_the_login_of_the_one_that_was_chosen(fleet: Fleet):
    sets = '[accounts]\nanthropic = { use = ["work", "spare"] }\n'
    fleet.configure(sets + ACCOUNTS.replace("host = 5", 'host = 5\n"anthropic@work" = 1\n"anthropic@spare" = 1'))
    env = home(fleet, ".claude-work", "spare/claude")
    script = 'echo "$FLEETGATE_MODEL|$CLAUDE_CONFIG_DIR|$0"; sleep 3'
    runs = [fleet.run("-m", "anthropic/claude-x", "--", "sh", "-c", script, "{account}", env=env) for _ in range(2)]
    assert [run.wait() for run in runs] == [0, 0], runs
    assert {run.out for run in runs} == {
        f"anthropic@work/claude-x|{env['HOME']}/.claude-work|work\n",
        f"anthropic@spare/claude-x|{env['HOME']}/spare/claude|spare\n",
    }


def test_a_job_that_names_no_account_has_the_login_of_the_one_that_was_chosen(fleet: Fleet):
    fleet.configure('[accounts]\nanthropic = { use = ["work"], then = ["spare"] }\n' + ACCOUNTS)
    jobs, env = Jobs(fleet), home(fleet, ".claude-work", "spare/claude")
    fleet.start([*FLEETGATE, "worker", "-n", "1"], env)
    submitted = fleet.start([*FLEETGATE, "submit", "-m", "anthropic/claude-x", "--", *SHOW], env)
    assert submitted.wait() == 0, submitted
    ident = submitted.out.strip()
    assert jobs.ended(ident).state == "succeeded"
    assert jobs.cli("logs", ident).out == f"anthropic@work/claude-x|{env['HOME']}/.claude-work|work\n"


def test_a_run_inside_a_run_on_another_account_does_not_inherit_its_login(fleet: Fleet):
    fleet.configure(ACCOUNTS)
    env = home(fleet, ".claude-work")
    inner = [*FLEETGATE, "run", "-m", "anthropic/claude-x", "--", *SHOW[:-1], "inner"]
    done = fleet.done("-m", "anthropic@work/claude-x", "--", *inner, env=env)
    assert done.out == "anthropic/claude-x||inner\n"


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ('ANTHROPIC_API_KEY = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"', "key_env"),
        ('FLEETGATE_LEASE = "x"', "its own variables"),
        ('"A=B" = "x"', "not a variable's name"),
        ('"" = "x"', "not a variable's name"),
        ('FOLDER = "a\\u0000b"', "without control characters"),
        ('FOLDER = ""', "without control characters"),
        ("FOLDER = 3", "without control characters"),
        ('FOLDER = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"', "may be a key"),
    ],
)
def test_q1_a_variable_that_cannot_be_or_that_is_a_key_is_refused(fleet: Fleet, env: str, said: str):
    fleet.config.write_text(f'[providers."anthropic@work"]\nenv = {{ {env} }}\n')
    refused = fleet.done("-m", "anthropic@work/claude-x", "--", "true")
    assert refused.code == 78
    assert said in refused.err
    assert "abcdefghijklmnopqrstuvwxyz0123456789" not in refused.err
