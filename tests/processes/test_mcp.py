"""`fleetgate mcp`, as the official client of the protocol meets it: over the pipes of a real process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from fleetgate.jobs import actions
from tests.processes.fleet import FLEETGATE, PATIENCE_S, Fleet
from tests.processes.job_fleet import Jobs

OPUS = "anthropic/claude-opus-4-6"
CONFIG = f'[agents]\nhost = 9\n"{OPUS}" = 1\n'


class Session:
    """A client that has started the server, for synchronous tests."""

    def __init__(self, portal: BlockingPortal, client: Client) -> None:
        self._portal, self._client = portal, client

    def tools(self) -> dict[str, Any]:
        return {tool.name: tool for tool in self._portal.call(self._client.list_tools).tools}

    def call(self, name: str, /, **given: object) -> dict[str, Any]:
        """The typed result; the client has checked it against the tool's schema."""
        result = self._portal.call(self._client.call_tool, name, given)
        assert not result.is_error, result
        assert json.loads(result.content[0].text) == result.structured_content
        return dict(result.structured_content)

    def refused(self, name: str, /, **given: object) -> str:
        result = self._portal.call(self._client.call_tool, name, given)
        assert result.is_error, result
        return str(result.content[0].text)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet(CONFIG) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def session(fleet: Fleet) -> Iterator[Session]:
    started = StdioServerParameters(
        command=FLEETGATE[0], args=["mcp"], env=fleet.env({"LC_ALL": "C"}), cwd=str(fleet.folder)
    )
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Client(stdio_client(started))) as client,
    ):
        yield Session(portal, client)


def test_the_tools_are_described_and_only_submit_changes_something(session: Session):
    tools = session.tools()
    assert list(tools) == ["capacity", "queue", "submit", "job_status", "usage"]
    for tool in tools.values():
        assert tool.input_schema["type"] == tool.output_schema["type"] == "object"
        assert all(len(part["description"]) > 10 for part in tool.input_schema["properties"].values()), tool.name
        assert 40 < len(tool.description) < 400
    assert [name for name, tool in tools.items() if not tool.annotations.read_only_hint] == ["submit"]
    assert tools["submit"].annotations.destructive_hint


def test_capacity_says_whether_to_start_an_agent(session: Session, fleet: Fleet):
    assert session.call("capacity", models=[OPUS])["level"] == "green"
    lease = fleet.occupy(OPUS)
    found = session.call("capacity", models=[OPUS], project=None)
    assert (found["level"], found["free_slots"]) == ("red", 0)
    assert "1 of 1 slots" in found["why"]
    assert "Do not start" in found["advice"]
    assert session.call("capacity", models=[OPUS, "openai/gpt-5"])["models"] == [OPUS, "openai/gpt-5"]
    fleet.free(lease)


def test_queue_lists_what_waits_and_why(session: Session, fleet: Fleet):
    lease = fleet.occupy(OPUS)
    run = fleet.run("-m", OPUS, "--project", "web", "--", "true")
    fleet.until(lambda: fleet.waits(run), PATIENCE_S, "the run waits")
    found = session.call("queue", limit="5")
    (waiting,) = found["requests"]
    assert (found["running"], found["waiting"]) == (1, 1)
    assert (waiting["project"], waiting["models"], waiting["position"]) == ("web", [OPUS], 1)
    assert "1 of 1 slots" in waiting["why"]
    fleet.free(lease)
    assert run.wait() == 0


def test_a_submitted_job_starts_only_after_a_person_approved_it(session: Session, fleet: Fleet):
    jobs = Jobs(fleet)
    ran = fleet.folder / "ran"
    job = session.call(
        "submit", command=["sh", "-c", f"touch {ran}; echo it is done"], name="made", key="k", work_class="normal"
    )
    assert job["new"]
    assert f"fleetgate approve {job['id']}" in job["next"]
    assert "fleetgate worker" in job["next"]
    assert session.call("submit", command=["true"], key="k")["id"] == job["id"]
    worker = jobs.worker(1)
    jobs.until(job["id"], "held")
    found = session.call("job_status", id="made")
    assert (found["state"], found["finished"]) == ("held", False)
    assert "approve" in found["next"]
    assert not ran.exists()
    assert jobs.view(job["id"]).job.spec.work_class == "normal"
    assert "for mcp" in (jobs.view(job["id"]).job.by or "")
    actions.approve(fleet.gate, job["id"], "the test")
    found = session.call("job_status", id=job["id"], wait_s=60)
    assert (found["state"], found["exit_code"], found["finished"]) == ("succeeded", 0, True)
    assert found["output_end"] == "it is done\n"
    assert ran.exists()
    worker.signal(15)
    assert worker.wait() == 0


def test_usage_is_summed_by_what_is_asked_for(session: Session):
    found = session.call("usage", by=["model"], since="2d")
    assert found["total"]["calls"] == 0
    assert found["rows"] == []


@pytest.mark.parametrize(
    ("tool", "given", "words"),
    [
        ("capacity", {"model": OPUS}, ["unknown field `model`", "models, project, kind"]),
        ("capacity", {"models": ["no model"]}, ["not a model", "Correct the arguments"]),
        ("submit", {"command": []}, ["length >= 1", "command"]),
        ("submit", {"command": ["true"], "folder": "/no/such/folder"}, ["no such folder", "Correct"]),
        ("submit", {"command": ["true"], "env": {"A": "b"}}, ["unknown field `env`"]),
        ("job_status", {"id": "zzzz"}, ["no job 'zzzz'", "`submit` returned"]),
        ("usage", {"since": "last full moon"}, ["since", "Correct the arguments"]),
        ("nothing", {}, ["no tool 'nothing'", "capacity, queue"]),
    ],
)
def test_an_error_tells_the_model_what_to_do(session: Session, tool: str, given: dict[str, Any], words: list[str]):
    text = session.refused(tool, **given)
    assert all(word in text for word in words), text
    assert "\n" not in text


def test_a_changed_config_file_counts_for_the_next_call(session: Session, fleet: Fleet):
    fleet.configure(CONFIG.replace("= 1\n", "= 5\n"))
    assert session.call("capacity", models=[OPUS])["free_slots"] == 5
    fleet.configure(CONFIG)


def test_a_server_without_submit_ends_with_stdin_even_while_a_call_waits(fleet: Fleet):
    ident = Jobs(fleet).quickly("true")
    opening = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a test", "version": "1"}}
    messages: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": opening},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "job_status", "arguments": {"id": ident, "wait_s": 300}}},
        {"id": 3, "method": "tools/list"},
    ]
    server = subprocess.Popen(
        [*FLEETGATE, "mcp", "--submit", "off"],
        env=fleet.env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    with server:
        server.stdin.write("".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in messages))
        server.stdin.flush()
        answers = {}
        while 3 not in answers:
            answer = json.loads(server.stdout.readline())
            answers[answer["id"]] = answer
        assert "submit" not in [tool["name"] for tool in answers[3]["result"]["tools"]]
        assert 2 not in answers
        server.stdin.close()
        assert server.wait(PATIENCE_S) == 0


def test_without_the_extra_the_command_that_installs_it_is_printed():
    code = "import sys; sys.modules['mcp'] = None\nfrom fleetgate.cli.main import main\nmain(['mcp'])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 69
    assert "`fleetgate mcp` needs the `mcp` extra" in ran.stderr
    assert "[mcp]" in ran.stderr
