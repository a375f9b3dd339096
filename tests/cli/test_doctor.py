"""`fleetgate doctor` (rules Q2, C2, R6): it survives what it looks for, and says what to do."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetgate.core import commands as cmd
from fleetgate.core.compiled import COMPILED
from fleetgate.core.entities import Rule, Spec
from fleetgate.core.errors import InternalError
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.wakeup import mailbox
from fleetgate.log.sqlite.log import SqliteLog
from tests.cli.command_line import Cli, opened

# Takes the write lock, says so, and stops or waits.
HOLDER = """
import os, signal, sys
from fleetgate.log.sqlite.log import SqliteLog
log = SqliteLog(sys.argv[1])
log.lock()
print("held", flush=True)
if sys.argv[2] == "stop":
    os.kill(os.getpid(), signal.SIGSTOP)
sys.stdin.read()
"""
# Dies with its mailbox open.
KILLED = "import os, sys; from fleetgate.gate.wakeup import mailbox; box = mailbox.Mailbox(sys.argv[1]); os._exit(0)"
CHECKS = ["versions", "environment", "config", "folder", "disk", "lock", "database", "writing", "clock", "holders",
          "counts", "caps", "sockets", "providers", "backoffs"]  # fmt: skip


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    monkeypatch.setattr("fleetgate.cli.doctor.check_store.LOCK_PATIENCE_S", 0.2)
    with opened(monkeypatch, capsys) as cli:
        for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):  # where leftovers of the former name are looked for
            cli.env(name, str(cli.folder / name))
        yield cli


def home(cli: Cli) -> Path:
    return Path(os.environ["FLEETGATE_HOME"])


def found(cli: Cli, check: str, code: int = 0) -> list[tuple[str, str, str | None]]:
    """Level, text and remedy of what one check found."""
    said = cli("doctor", "--json")
    assert said.code == code, said
    assert said.err == ""
    return [(each["level"], each["text"], each["do"]) for each in said.json["checks"] if each["check"] == check]


def test_the_versions_say_which_core_this_is(cli: Cli):
    (found_one,) = found(cli, "versions")
    assert f"(core: {'compiled' if COMPILED else 'plain Python'})" in found_one[1]


def test_a_healthy_gate_is_well(cli: Cli):
    cli.occupy("anthropic/claude-opus-4-6")
    document = cli.json("doctor")
    assert [each["check"] for each in document["checks"]] == CHECKS
    assert [each for each in document["checks"] if each["level"] == "bad"] == []
    assert set(document["checks"][0]) == {"check", "level", "text", "do"}
    text = cli.ok("doctor")
    assert "ok    counts       leases, tickets and" in text
    assert text.endswith(("all is well\n", "1 warning\n"))  # /tmp may be a tmpfs


def test_it_changes_nothing_that_is_told(cli: Cli):
    before = cli.length()
    cli.ok("doctor")
    assert cli.length() == before


def test_r6_where_there_is_nothing_yet_it_says_so_and_makes_nothing(cli: Cli):
    cli.env("FLEETGATE_HOME", str(cli.folder / "nothing" / "here"))
    ((level, text, _),) = found(cli, "folder")
    assert level == "ok"
    assert "does not exist yet; the first `fleetgate run` creates it" in text
    assert not (cli.folder / "nothing").exists()


def test_r6_an_empty_folder_stays_empty(cli: Cli):
    (cli.folder / "empty").mkdir(mode=0o700)
    cli.env("FLEETGATE_HOME", str(cli.folder / "empty"))
    assert found(cli, "database") == [("ok", "none yet; the first `fleetgate run` creates it", None)]
    assert list((cli.folder / "empty").iterdir()) == []


@pytest.mark.parametrize("content", [b"not a database" * 1000, b"", b"SQLite format 3\0" + b"\xff" * 5000])
def test_q2_a_corrupt_database_is_bad_and_stays_where_it_is(cli: Cli, content: bytes):
    cli.close()
    for path in home(cli).glob("fleetgate.db*"):
        path.unlink()
    database = home(cli) / "fleetgate.db"
    database.write_bytes(content)
    ((level, text, do),) = found(cli, "database", code=69)
    assert level == "bad"
    assert "is damaged" in text
    assert do == f"mkdir {home(cli)}/damaged && mv {database}* {home(cli)}/damaged/"
    assert database.read_bytes() == content
    assert "\n1 bad" in cli("doctor").out


def test_q2_a_page_that_was_overwritten_is_found(cli: Cli):
    for _ in range(50):
        cli.gate.decide([cmd.Bypass(cli.gate.me, (), "x" * 150)])
    cli.close()
    database = home(cli) / "fleetgate.db"
    with database.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * 4096)
    assert found(cli, "database", code=69)[0][0] == "bad"


def test_q2_a_store_of_a_newer_fleetgate_is_bad_and_not_called_damaged(cli: Cli):
    cli.close()
    conn = sqlite3.connect(home(cli) / "fleetgate.db")
    conn.execute("PRAGMA user_version=99")
    conn.close()
    ((level, text, do),) = found(cli, "database", code=69)
    assert (level, do) == ("bad", None)
    assert "has format 99, of a newer fleetgate" in text


def test_q2_a_home_that_is_a_file_is_bad(cli: Cli):
    cli.env("FLEETGATE_HOME", str(cli.config))
    assert found(cli, "folder", code=69)[0][:2] == ("bad", f"{cli.config} is not a folder")


@pytest.mark.parametrize(("mode", "can"), [(0o755, "look into"), (0o707, "write to")])
def test_q2_a_folder_that_is_open_to_all_is_a_warning(cli: Cli, mode: int, can: str):
    home(cli).chmod(mode)
    ((level, text, do),) = found(cli, "folder")
    assert level == "warn"
    assert f"every user of this machine can {can}" in text
    assert do == f"chmod o-rwx {home(cli)}"


def test_q2_a_folder_that_is_shared_with_its_group_is_well(cli: Cli):
    home(cli).chmod(0o770)
    assert found(cli, "folder") == [("ok", f"only its owner and its group can read {home(cli)}", None)]


def test_q2_a_folder_that_cannot_be_read_is_bad_and_looked_into_no_further(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may read everything
    ((level, text, do),) = found(cli, "folder", code=69)
    assert level == "bad"
    assert "this user cannot read and write" in text
    assert do == f"chmod -R u+rwX {home(cli)}"
    assert found(cli, "database", code=69) == []


def test_q2_a_folder_of_somebody_else_is_bad(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    ((level, text, do),) = found(cli, "folder", code=69)
    assert (level, do) == ("bad", "export FLEETGATE_HOME=/some/folder/of/yours")
    assert f"{home(cli)} belongs to " in text


def test_r6_a_network_file_system_is_bad(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fleetgate.log.sqlite.filesystems._kind", lambda path: "nfs4")
    level, text, _ = found(cli, "disk", code=69)[0]
    assert level == "bad"
    assert "is on a network file system (nfs4)" in text


# The lock.


def holding(cli: Cli, how: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(home(cli)), how], stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    if how == "stop":
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    return process


def test_q2_a_stopped_process_that_holds_the_lock_is_named_with_the_way_out(cli: Cli):
    with holding(cli, "stop") as holder:
        try:
            ((level, text, do),) = found(cli, "lock", code=69)
            assert found(cli, "writing", code=69) == [
                ("warn", "not tried: another process holds the store's lock", None)
            ]
            assert found(cli, "counts", code=69)[0][0] == "ok", "the books are read without the lock"
        finally:
            holder.send_signal(signal.SIGCONT)
            holder.kill()
    assert level == "bad"
    assert f"process {holder.pid} (" in text
    assert "is stopped and holds the store's lock" in text
    assert do == f"kill -CONT {holder.pid}"


def test_q2_a_lock_that_is_held_for_long_is_a_warning(cli: Cli):
    with holding(cli, "wait") as holder:
        try:
            ((level, text, do),) = found(cli, "lock")
        finally:
            holder.kill()
    assert (level, do) == ("warn", f"kill {holder.pid}")
    assert "has held the store's lock for more than" in text


# The books.


def test_l2_what_the_dead_hold_is_a_warning_with_the_command_that_frees_it(cli: Cli):
    me = cli.gate.me.split("|")
    dead = "|".join([*me[:3], "1", "1"])  # pid 1 has not started at tick 1
    cli.gate.one(cmd.SetRule(Rule("agents", "host", 1)))
    cli.gate.one(cmd.Acquire("aaaaaaaaaa", Spec(host=cli.gate.host), dead))
    cli.gate.one(cmd.Acquire("bbbbbbbbbb", Spec(host=cli.gate.host), dead))
    lease, ticket = found(cli, "holders")
    assert (lease[0], lease[2]) == ("warn", "fleetgate release aaaaaaaaaa --force")
    assert "1 lease (aaaaaaaaaa) of processes that have exited" in lease[1]
    assert (ticket[0], ticket[2]) == ("warn", "fleetgate cancel bbbbbbbbbb")
    cli.ok("cancel", "bbbbbbbbbb")
    cli.ok("release", "aaaaaaaaaa", "--force")
    assert found(cli, "holders")[0][0] == "ok"


def test_l2_those_that_cannot_be_judged_from_here_are_named(cli: Cli):
    for number in range(7):
        spec = Spec(kind="requests")
        cli.gate.one(cmd.Acquire(f"aaaaaaaaa{number}", spec, f"build-07|abc|1|{number + 1}|9"))
    ((level, text, do),) = found(cli, "holders")
    assert (level, do) == ("warn", "fleetgate release aaaaaaaaa0 --force")
    assert "7 leases (" in text
    assert "and 2 more) whose process cannot be seen from here (another machine or container: build-07)" in text


def test_q2_a_stopped_holder_is_named(cli: Cli):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        try:
            cli.gate.one(cmd.Acquire("aaaaaaaaaa", Spec(kind="requests"), process_identity.identify(child.pid) or ""))
            child.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED)
            ((level, text, do),) = found(cli, "holders")
        finally:
            child.kill()
    assert (level, do) == ("warn", f"kill -CONT {child.pid}")
    assert "is stopped, and keeps its slots" in text


def test_a_broken_invariant_is_bad(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    def broken(state: object) -> None:
        raise InternalError("invariant broken: host: counted 2, granted 1")

    monkeypatch.setattr("fleetgate.cli.doctor.check_gate.check_invariants", broken)
    ((level, text, _),) = found(cli, "counts", code=69)
    assert level == "bad"
    assert "counted 2, granted 1: a bug in Fleetgate, please report it" in text


def test_a_check_that_fails_itself_is_a_finding(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    def failing(*_: object) -> bool:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("fleetgate.gate.liveness.process_identity.is_gone", failing)
    cli.occupy()
    ((level, text, _),) = found(cli, "holders", code=69)
    assert (level, text) == ("bad", "this check itself failed (ZeroDivisionError: oh): please report it")


def test_q2_a_wall_clock_that_was_set_is_told(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    real = SqliteLog(str(home(cli)))
    ahead = real.now() + 7_230_000
    real.close()
    monkeypatch.setattr("fleetgate.cli.doctor.check_gate.wall_ms", lambda: ahead)
    ((level, text, _),) = found(cli, "clock")
    assert level == "ok"
    assert "the wall clock was set forward by 2h; harmless" in text


def test_q2_a_log_from_the_future_is_bad(cli: Cli):
    log = SqliteLog(str(home(cli)), clock=lambda: cli.gate.now() + 7_200_000)
    log.lock()
    log.begin()
    replica = cli.gate.replica
    log.append(replica.position, log.now(), [], None)
    log.close()
    ((level, text, _),) = found(cli, "clock", code=69)
    assert level == "bad"
    assert "ahead of this machine: until then the log's time stands still" in text


def test_sockets_of_killed_processes_are_removed(cli: Cli):
    folder = Path(mailbox.runtime_folder(str(home(cli))))
    for _ in range(2):
        subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=True)
    assert len(list(folder.iterdir())) == 2
    assert found(cli, "sockets") == [("ok", "removed 2 wake sockets that killed processes left behind", None)]
    assert list(folder.iterdir()) == []


# The config.


def test_c6_a_bad_config_file_is_exit_78_with_every_problem(cli: Cli):
    cli.config.write_text("[agents]\nhost = 'x'\nanthropic = -1\n")
    problems = found(cli, "config", code=78)
    assert [level for level, _, _ in problems] == ["bad", "bad"]
    assert "config.toml:2" in problems[0][1]
    assert found(cli, "counts", code=78)[0][0] == "ok", "the store is looked at all the same"


def test_c3_a_bad_environment_is_exit_78(cli: Cli):
    cli.env("FLEETGATE_AGENTS", "host=many")
    assert found(cli, "environment", code=78)[0][0] == "bad"


def test_c3_a_relative_home_is_exit_78(cli: Cli):
    cli.env("FLEETGATE_HOME", "relative/folder")
    level, text, _ = found(cli, "store", code=78)[0]
    assert level == "bad"
    assert "valid is an absolute path" in text


def test_c2_a_file_in_force_is_told(cli: Cli):
    cli.configure("[requests]\numans = 4\n")
    assert found(cli, "caps") == [("ok", f"{cli.config} is in force", None)]


def test_c2_a_file_that_is_hidden_by_a_run_time_value_is_a_warning(cli: Cli):
    cli.configure("[requests]\numans = 4\nopenai = 2\n")
    cli.gate.one(cmd.SetRule(Rule("requests", "umans", 6)))
    cli.gate.one(cmd.RemoveCap("requests", "openai"))
    assert found(cli, "caps") == [
        ("warn", "umans (requests): the file says 4; 6 was set at run time and hides it",
         "fleetgate cap reset 'umans' --kind requests"),
        ("warn", "openai (requests): the file says 2; no cap was set at run time and hides it",
         "fleetgate cap reset 'openai' --kind requests"),
    ]  # fmt: skip


def test_c2_the_command_that_doctor_names_takes_the_run_time_value_back(cli: Cli):
    cli.configure("[requests]\numans = 4\n")
    cli.gate.one(cmd.SetRule(Rule("requests", "umans", 6)))
    cli.ok("cap", "reset", "umans", "--kind", "requests")
    assert found(cli, "caps")[0][0] == "ok"


def test_c2_an_older_file_is_not_in_force(cli: Cli):
    cli.configure("[requests]\numans = 4\n")
    cli.write("[requests]\numans = 5\n", 1_000_000_000)
    ((level, text, do),) = found(cli, "caps")
    assert (level, do) == ("warn", "fleetgate config apply")
    assert "is not in force: a newer version is" in text
    cli.ok("config", "apply")
    assert found(cli, "caps")[0][0] == "ok"


def test_c2_a_newer_file_comes_with_the_next_command(cli: Cli):
    cli.config.write_text("[requests]\numans = 4\n")
    ((level, text, _),) = found(cli, "caps")
    assert level == "ok"
    assert "the next command applies it" in text
    assert not cli.state.rules.file


def test_c2_the_caps_of_a_file_that_is_gone_are_still_in_force(cli: Cli):
    cli.configure("[requests]\numans = 4\n")
    cli.config.unlink()
    cli.unset("FLEETGATE_CONFIG")
    cli.env("XDG_CONFIG_HOME", str(cli.folder))
    ((level, text, _),) = found(cli, "caps")
    assert level == "warn"
    assert f"the caps of {cli.config} are still in force" in text


def test_c3_a_bypass_and_caps_of_the_environment_are_told(cli: Cli):
    cli.env("AIDEVOPS_OPUS_CONCURRENCY_CAP", "6")
    cli.env("FLEETGATE_AGENTS", "host=5")
    assert found(cli, "environment") == [("ok", "sets caps for agents started from here: host=5, opus=6", None)]
    cli.env("FLEETGATE_BYPASS", "1")
    assert found(cli, "environment")[0][::2] == ("warn", "unset FLEETGATE_BYPASS")


def test_c3_a_store_in_memory_shares_nothing(cli: Cli):
    cli.env("FLEETGATE_STORE", "memory://")
    ((level, _, do),) = found(cli, "store")
    assert (level, do) == ("warn", "unset FLEETGATE_STORE")


@pytest.mark.parametrize("argv", [("--jsn",), ("extra",)])
def test_q1_bad_options_are_usage_errors(cli: Cli, argv: tuple[str, ...]):
    assert "more:  fleetgate doctor --help" in cli.refused("doctor", *argv)


def test_a_config_file_that_others_can_write_to_is_named_with_the_remedy(cli: Cli):
    cli.configure("[requests]\numans = 4\n")
    cli.config.chmod(0o664)
    valid, (level, text, do) = found(cli, "config")
    assert valid[0] == "ok"
    assert (level, do) == ("warn", f"chmod go-w {cli.config}")
    assert "make you run commands" in text


def test_a_census_is_told_with_what_it_could_not_do(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    assert found(cli, "census") == []
    cli.configure("[[census]]\nmatch = 'no such agent anywhere (?P<model>x)'\n")
    assert found(cli, "census") == [("ok", "agents started outside Fleetgate: none", None)]
    monkeypatch.setattr("fleetgate.gate.liveness.foreign_agents.BUDGET_MS", -1)
    monkeypatch.setattr("fleetgate.gate.liveness.foreign_agents.FRESH_MS", 0)
    ((level, text, _),) = found(cli, "census")
    assert level == "warn"
    assert "simpler patterns" in text


# The former name.


def test_leftovers_of_the_former_name_are_reported_with_what_to_do(cli: Cli):
    cli.env("HOME", str(cli.folder))
    cli.env("HEADGATE_HOME", "/somewhere")
    cli.env("XDG_STATE_HOME", str(cli.folder / "state"))
    cli.env("XDG_CONFIG_HOME", str(cli.folder / "config"))
    for name in ("state", "config"):
        (cli.folder / name / "headgate").mkdir(parents=True)
    old, new = cli.folder / "config" / "headgate" / "config.toml", cli.folder / "config" / "fleetgate" / "config.toml"
    old.touch()
    cli.env("FLEETGATE_CONFIG", "")
    variable, state, config = found(cli, "old name")
    assert variable[0] == state[0] == config[0] == "warn"
    assert variable[2] == 'export FLEETGATE_HOME="$HEADGATE_HOME"; unset HEADGATE_HOME'
    assert state[2] == f"rm -r {cli.folder}/state/headgate"
    assert config[2] == f"mkdir -p {new.parent} && cp {old} {new} && fleetgate config check"


def test_the_former_name_is_not_mentioned_where_nothing_is_left_of_it(cli: Cli):
    assert found(cli, "old name") == []


def test_the_folder_of_an_accounts_login_is_looked_at(cli: Cli, tmp_path: Path):
    login = tmp_path / "claude work"
    cli.configure(f'[providers."anthropic@work"]\nenv = {{ CLAUDE_CONFIG_DIR = "{login}", EDITOR = "vi" }}\n')
    (folder, _) = found(cli, "providers")
    assert folder[0] == "warn"
    assert "which is not a folder" in folder[1]
    assert folder[2] == f"mkdir -p '{login}'"
    login.mkdir()
    (empty, missing) = found(cli, "providers")
    assert empty[2] == f"CLAUDE_CONFIG_DIR='{login}' claude /login"
    assert 'or correct env of [providers."anthropic@work"]' in missing[1]
    (login / ".credentials.json").write_text('{"claudeAiOauth": {"accessToken": "a-token-that-is-long-enough"}}')
    (there,) = found(cli, "providers")
    assert there[0] == "ok"
    assert "a-token" not in str(there)
