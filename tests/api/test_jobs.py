"""H2, J: `/v1/jobs` does what the commands do, with real workers; who may, and what is said of what is wrong."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.api.served import Served

FINAL = ("succeeded", "failed", "cancelled", "expired", "lost")


@contextmanager
def worker(served: Served, *options: str) -> Iterator[subprocess.Popen[str]]:
    process = served.spawn("worker", "-n", "2", *options)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def submit(served: Served, *command: str, **said: object) -> str:
    answer = served.request("POST", "/v1/jobs", {"command": list(command), "cwd": "/", **said})
    assert answer.status == 201, answer
    return str(answer.json["id"])


def state_of(served: Served, ident: str) -> str:
    return str(served.get(f"/v1/jobs/{ident}").json["state"])


def until(served: Served, ident: str, *states: str) -> Any:
    served.wait_until(lambda: state_of(served, ident) in states, f"{ident} {states}")
    return served.get(f"/v1/jobs/{ident}").json


def follow(served: Served, ident: str, query: str = "") -> list[dict[str, Any]]:
    """Everything that a job prints, to its end, in pages as they come."""
    pieces, after = [], ""
    while True:
        page = served.ok("GET", f"/v1/jobs/{ident}/output?wait_s=20&after={after}{query}")
        pieces += page["pieces"]
        after = page["next"]
        if page["ended"]:
            return pieces


def test_h2_o8_a_job_is_submitted_listed_run_and_its_output_followed_over_all_attempts(fresh: Served):
    script = 'echo "out $FLEETGATE_ATTEMPT"; echo "err $FLEETGATE_ATTEMPT" >&2; exit $((2 - FLEETGATE_ATTEMPT))'
    answer = fresh.request("POST", "/v1/jobs", {"command": ["sh", "-c", script], "name": "twice", "cwd": "/tmp"})
    assert (answer.status, answer.json["state"], answer.json["position"]) == (201, "queued", 1)
    assert answer.json["reason"]["code"] == "no_worker"
    ident = answer.json["id"]
    listed = fresh.get("/v1/jobs").json
    assert ([job["id"] for job in listed["jobs"]], listed["total"], listed["counts"]["queued"]) == ([ident], 1, 1)
    assert listed["jobs"][0] == json.loads(fresh.cli("show", ident, "--json").stdout)
    with worker(fresh):
        pieces = follow(fresh, ident)
    told = [(piece["stream"], piece["text"]) for piece in pieces if piece["stream"] != "fleetgate"]
    assert sorted(told) == [("err", "err 1\n"), ("err", "err 2\n"), ("out", "out 1\n"), ("out", "out 2\n")]
    notes = [piece["text"] for piece in pieces if piece["stream"] == "fleetgate"]
    assert [note for note in notes if "began" in note] == ["attempt 1 began\n", "attempt 2 began\n"]
    job = fresh.get(f"/v1/jobs/{ident}").json
    assert (job["state"], job["attempt"], job["failures"], job["cwd"]) == ("succeeded", 2, 1, "/tmp")
    assert job["by"] == "owner"
    assert fresh.cli("wait", ident).returncode == 0


def test_j4_output_that_is_not_text_is_told_as_it_was(fresh: Served):
    ident = submit(fresh, "sh", "-c", r"printf '\377\376 ok\n\303\244\n'")
    with worker(fresh):
        pieces = [piece for piece in follow(fresh, ident) if piece["stream"] == "out"]
    whole = b"".join(
        base64.b64decode(piece["base64"]) if piece["base64"] else piece["text"].encode() for piece in pieces
    )
    assert whole == b"\xff\xfe ok\n\xc3\xa4\n"
    assert pieces[-1] == {**pieces[-1], "text": "ä\n", "base64": None}


def test_j4_long_output_is_paged_and_its_end_can_be_read_alone(fresh: Served):
    ident = submit(fresh, "sh", "-c", "seq -w 1 99999; echo end >&2")
    with worker(fresh):
        until(fresh, ident, *FINAL)
    text, after, pages = "", "", 0
    while True:
        page = fresh.ok("GET", f"/v1/jobs/{ident}/output?limit=1&stream=out&after={after}")
        text, after, pages = text + "".join(piece["text"] for piece in page["pieces"]), page["next"], pages + 1
        if not page["more"]:
            break
    assert text.split() == [f"{number:05}" for number in range(1, 100_000)]
    assert pages > 5
    tail = fresh.ok("GET", f"/v1/jobs/{ident}/output?tail=500")
    assert tail["ended"] is True
    assert 1 < len(tail["pieces"]) < 40
    refused = fresh.request("GET", f"/v1/jobs/{ident}/output?tail=500&after=1-0")
    assert (refused.status, refused.json["field"]) == (400, "tail")
    assert fresh.request("GET", f"/v1/jobs/{ident}/output?after=x").status == 400


def test_j4_j5_cancel_retry_and_approve_over_http(fresh: Served):
    waits = submit(fresh, "true")
    assert fresh.ok("POST", f"/v1/jobs/{waits}/cancel")["state"] == "cancelled"
    assert fresh.request("POST", f"/v1/jobs/{waits}/cancel").status == 409
    held = submit(fresh, "true", confirm=True, name="careful")
    with worker(fresh):
        until(fresh, held, "held")
        assert fresh.ok("POST", "/v1/jobs/careful/approve")["id"] == held
        until(fresh, held, "succeeded")
        assert fresh.request("POST", f"/v1/jobs/{held}/approve").status == 409
        runs = submit(fresh, "sleep", "60")
        until(fresh, runs, "running")
        assert fresh.request("POST", f"/v1/jobs/{runs}/retry").status == 409
        answer = fresh.ok("POST", f"/v1/jobs/{runs}/cancel")
        assert answer["ending"] or answer["state"] == "cancelled", "it ends within a moment"
        job = until(fresh, runs, "cancelled")
        assert job["why"] == "cancelled by owner while it was running"
        fresh.ok("POST", f"/v1/jobs/{waits}/retry")
        until(fresh, waits, "succeeded")
    assert fresh.request("POST", "/v1/jobs/nothere/retry").status == 404


def test_j4_the_list_is_filtered_and_paged(fresh: Served):
    for number in range(5):
        submit(fresh, "true", name=f"blue {number}", project="blue", priority=-number)
    other = submit(fresh, "make", "test", project="red")
    done = submit(fresh, "true", project="red")
    fresh.ok("POST", f"/v1/jobs/{done}/cancel")

    def names(query: str) -> list[str]:
        return [job["name"] or job["command"][0] for job in fresh.get(f"/v1/jobs?{query}").json["jobs"]]

    assert names("project=blue") == [f"blue {number}" for number in range(5)]
    assert names("project=blue&limit=2&offset=2") == ["blue 2", "blue 3"]
    assert names("state=cancelled,lost") == ["true"]
    assert names("name=make") == ["make"]
    assert names("since_s=0.001") == []
    line = [ticket["id"] for ticket in fresh.get("/v1/tickets").json["tickets"]]
    assert other in line
    pages = [fresh.get(f"/v1/jobs?limit=1&offset={offset}").json for offset in range(8)]
    assert [[job["id"] for job in page["jobs"]] for page in pages] == [*([each] for each in [*line, done]), []]
    page = pages[0]
    assert {page["total"] for page in pages} == {7}
    assert (page["counts"]["queued"], page["counts"]["cancelled"]) == (6, 1)
    refused = fresh.get("/v1/jobs?state=done")
    assert (refused.status, "valid are queued, held" in refused.json["error"]) == (400, True)


def test_j1_a10_a_batch_is_whole_or_nothing_and_a_key_gives_back_the_same_job(fresh: Served):
    good = {"command": ["true"], "cwd": "/", "key": "nightly"}
    bad = fresh.request("POST", "/v1/jobs/batch", {"jobs": [good, {"command": ["true"], "cwd": "/nowhere"}]})
    assert bad.status == 400
    assert "jobs[1]: cwd '/nowhere': there is no such folder" in bad.json["error"]
    assert fresh.get("/v1/jobs").json["total"] == 0
    many = fresh.request("POST", "/v1/jobs/batch", {"jobs": [good, {"command": ["true"], "env": {"A": "x" * 90_000}}]})
    assert many.status == 201
    assert [job["position"] for job in many.json["jobs"]] == [1, 2]
    again = fresh.request("POST", "/v1/jobs", good)
    assert (again.status, again.json["new"], again.json["id"]) == (200, False, many.json["jobs"][0]["id"])
    run = fresh.spawn("run", "--key", "taken", "--", "sleep", "60")
    try:
        fresh.wait_until(lambda: fresh.get("/v1/leases").json["leases"], "the run has its slot")
        refused = fresh.request("POST", "/v1/jobs", {"command": ["true"], "key": "taken"})
        assert (refused.status, refused.json["reason"]) == (409, "conflict")
    finally:
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=30)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "command"),
        ({"command": []}, "command"),
        ({"command": ["a\0b"]}, "zero byte"),
        ({"command": ["true"], "prority": 1}, "prority"),
        ({"command": ["true"], "models": ["opus"]}, "a model is provider/model"),
        ({"command": ["true"], "timeout_s": 0}, "timeout_s"),
        ({"command": ["true"], "retry_on": ["rate"]}, "exit codes"),
        ({"command": ["true"], "env": {"A=": "b"}}, "without ="),
        ({"command": ["true"], "session": " x "}, "printable"),
    ],
)
def test_q1_a_job_that_cannot_be_is_refused_with_what_is_valid(served: Served, body: object, says: str):
    refused = served.request("POST", "/v1/jobs", body)
    assert refused.status == 400
    assert says in refused.json["error"]
    assert served.get("/v1/jobs?all=true").json["total"] == 0


def test_h5_submitting_and_output_need_the_token_and_no_page_elsewhere_can(served: Served):
    body = {"command": ["true"]}
    assert served.request("POST", "/v1/jobs", body, token="").status == 401
    assert served.request("POST", "/v1/jobs/batch", {"jobs": [body]}, token="wrong").status == 401
    assert served.request("POST", "/v1/jobs", body, Origin="https://evil.example").status == 403
    assert served.get("/v1/jobs/any/output").status == 401
    assert served.get("/v1/jobs").status == 200
    big = b'{"command": ["' + b"x" * 70_000 + b'"]}'
    assert served.request("POST", "/v1/jobs", big, token="", Content_Type="application/json").status in (401, 413)
    assert served.get("/v1/jobs?all=true").json["total"] == 0


def test_h5_submitting_over_http_can_be_switched_off(tmp_path: Path):
    with Served(tmp_path, "[serve]\nsubmit = false\n") as served:
        refused = served.request("POST", "/v1/jobs", {"command": ["true"]})
        assert (refused.status, refused.json["reason"]) == (403, "submit_off")
        assert served.cli("submit", "--", "true").returncode == 0
        assert served.get("/v1/jobs").json["total"] == 1


def test_h5_on_another_address_it_takes_the_config_to_submit(tmp_path: Path):
    served = Served(tmp_path, FLEETGATE_TOKEN="x" * 40)
    try:
        served.start("--host", "0.0.0.0")
        headers = {"Authorization": f"Bearer {'x' * 40}"}
        refused = served.request("POST", "/v1/jobs", {"command": ["true"]}, token="", **headers)
        assert (refused.status, refused.json["reason"]) == (403, "submit_off")
    finally:
        served.kill()


def test_h2_a_stop_ends_who_follows_output_at_once(fresh: Served):
    ident = submit(fresh, "sleep", "60")
    token = fresh.token
    with subprocess.Popen(
        [
            "curl",
            "-s",
            "-H",
            f"Authorization: Bearer {token}",
            f"http://127.0.0.1:{fresh.port}/v1/jobs/{ident}/output?wait_s=60",
        ],
        stdout=subprocess.PIPE,
    ) as reader:
        fresh.wait_until(lambda: fresh.request("GET", f"/v1/jobs/{ident}").status == 200, "it answers")
        assert fresh.stop() == 0
        reader.communicate(timeout=60)


def test_r11_the_kept_output_of_a_run_is_read_like_that_of_a_job(fresh: Served):
    assert fresh.cli("run", "--log", "--name", "review", "--", "echo", "hello").returncode == 0
    found = fresh.ok("GET", "/v1/jobs/review/output")
    assert [piece["text"] for piece in found["pieces"] if piece["stream"] == "out"] == ["hello\n"]
    assert found["ended"] is True
    assert fresh.get("/v1/jobs/review").status == 404
