"""Access keys as the API key of a call through the proxy (rules E1, E2)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from tests.api.served import Answer
from tests.proxy.proxied import Proxied


def create(gate: Proxied, name: str, *options: str) -> str:
    done = gate.cli("key", "create", name, *options, "--json")
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["key"])


def test_e1_a_call_with_an_access_key_goes_upstream_with_the_configured_key_and_the_rights_of_the_access_key(
    proxied: Callable[..., Proxied],
) -> None:
    gate = proxied(fake='key_env = "FAKE_KEY"', FAKE_KEY="sk-of-the-config")
    key = create(gate, "ci", "--project", "web", "--class", "batch", "--max-priority", "0")
    mine = {"x_api_key": key, "x-fleetgate-priority": "90", "x-fleetgate-class": "interactive"}
    assert gate.chat(**mine).status == 200
    (seen,) = gate.provider.seen
    assert seen.headers["authorization"] == "Bearer sk-of-the-config"
    assert key not in repr(seen)
    assert gate.line()["project"] == "web"
    granted = [event for event in gate.ok("GET", "/v1/history")["events"] if event["type"] == "granted"]
    assert (granted[-1]["ticket"]["spec"]["work_class"], granted[-1]["ticket"]["priority"]) == ("batch", 0)

    other = gate.chat(**mine, x_fleetgate_project="docs")
    assert (other.status, "works for the project web" in other.body.decode()) == (403, True)
    viewer = create(gate, "wall", "--role", "viewer")
    assert gate.chat(x_api_key=viewer).status == 403
    assert gate.cli("key", "rm", "ci").returncode == 0
    assert gate.chat(**mine).status == 401
    assert gate.chat(Authorization=f"Bearer {key}").status == 401
    assert len(gate.provider.seen) == 1, "none of our keys goes to a provider"


def run_of(gate: Proxied, key: str, **more: object) -> str:
    """A lease of kind agents, as a run that an access key requested."""
    body = {"models": ["fake/m1"], "kind": "agents", "renew_within_s": 600, **more}
    return str(gate.request("POST", "/v1/leases", body, token=key).json["lease"])


def test_e1_the_caps_and_budgets_of_a_key_hold_for_its_calls(proxied: Callable[..., Proxied]) -> None:
    gate = proxied(requests="key = 1", fake='key_env = "FAKE_KEY"', FAKE_KEY="sk-x")
    key = create(gate, "ci", "--project", "web", "--budget", "calls=2/day")
    gate.provider.latency_s = 1.0
    answers: list[Answer] = []
    calls = [Thread(target=lambda: answers.append(gate.chat(x_api_key=key, x_fleetgate_hold="30s"))) for _ in range(2)]
    for call in calls:
        call.start()
    gate.wait_until(lambda: gate.tickets(), "the second call waits")
    (waiting,) = gate.tickets()
    assert (waiting["reason"]["pool"], waiting["access_key"]) == ("key:ci", "ci")
    assert gate.chat(x_api_key="of-another").status == 200, "a call without a key of ours is not held back"
    for call in calls:
        call.join()
    assert [answer.status for answer in answers] == [200, 200]
    gate.provider.latency_s = 0.0
    third = gate.chat(x_api_key=key, x_fleetgate_hold="1s")
    assert (third.status, "key:ci" in third.body.decode()) == (429, True)
    used = {each["key"]: each["calls"] for each in gate.ok("GET", "/v1/usage?by=key")["rows"]}
    assert (used["ci"], used[None]) == (2, 1)


@pytest.mark.parametrize("how", ["rotate", "rm"])
def test_e1_a_call_that_waits_is_worth_nothing_once_its_key_is_removed_or_rotated(
    proxied: Callable[..., Proxied], how: str
) -> None:
    gate = proxied(requests='fake = { cap = 1, cooldown = "0" }', fake='key_env = "FAKE_KEY"', FAKE_KEY="sk-x")
    key = create(gate, "ci", "--project", "web")
    slot = gate.lease("fake/m1", kind="requests").json["lease"]
    answers: list[Answer] = []
    call = Thread(target=lambda: answers.append(gate.chat(x_api_key=key)))
    call.start()
    gate.wait_until(lambda: gate.tickets(), "the call waits")
    assert gate.cli("key", how, "ci").returncode == 0
    gate.ok("POST", f"/v1/leases/{slot}/release", {})
    call.join()
    assert (answers[0].status, gate.provider.stats.calls) == (401, 0)


def test_e1_calls_of_a_run_count_for_the_key_of_the_run_only_if_a_trusted_caller_makes_them(
    proxied: Callable[..., Proxied],
) -> None:
    gate = proxied(fake='key_env = "FAKE_KEY"', FAKE_KEY="sk-x")
    key, other = create(gate, "ci", "--project", "web"), create(gate, "bob", "--project", "web")
    run = run_of(gate, key)

    def key_of_call(**headers: str) -> object:
        assert gate.chat(x_fleetgate_lease=run, **headers).status == 200
        granted = [each for each in gate.events("granted") if each["ticket"] and each["ticket"]["run"]]
        return granted[-1]["ticket"]["spec"]["access_key"]

    assert key_of_call(Authorization=f"Bearer {gate.token}", x_api_key="") == "ci"
    assert key_of_call(x_api_key=other) == "bob", "a key that is shown counts, not that of the run"
    gate.ok("POST", f"/v1/leases/{run}/release", {})


def test_e2_a_call_with_an_agents_key_cannot_belong_to_a_run_of_another_project(
    proxied: Callable[..., Proxied],
) -> None:
    gate = proxied(fake='key_env = "FAKE_KEY"', FAKE_KEY="sk-x")
    run = run_of(gate, gate.token, project="docs")
    key = create(gate, "ci", "--project", "web")
    for more in ({}, {"x_fleetgate_project": "web"}):
        assert gate.chat(x_api_key=key, x_fleetgate_lease=run, **more).status == 200
    tickets = [each["ticket"] for each in gate.events("granted")]
    calls = [each for each in tickets if each["spec"]["kind"] == "requests"]
    assert [(each["spec"]["project"], each["run"]) for each in calls] == [("web", None), ("web", None)]
    gate.ok("POST", f"/v1/leases/{run}/release", {})


def test_e4_the_name_of_a_reverse_proxys_user_and_its_secret_go_to_no_provider(
    proxied: Callable[..., Proxied], tmp_path: Path
) -> None:
    secret = tmp_path / "proxy-secret"
    secret.write_text("a-secret-of-16-or-more")
    secret.chmod(0o600)
    more = f'[serve.trust_user_header]\nheader = "X-Forwarded-User"\nfrom = ["127.0.0.1"]\nsecret_file = "{secret}"\n'
    gate = proxied(more=more)
    headers = {"X_Forwarded_User": "alice", "X_Fleetgate_Proxy_Secret": "a-secret-of-16-or-more", "X_Other": "stays"}
    assert gate.chat(**headers).status == 200
    (seen,) = gate.provider.seen
    assert "alice" not in repr(seen)
    assert "a-secret-of-16-or-more" not in repr(seen)
    assert seen.headers["x-other"] == "stays"


def test_e4_what_a_reverse_proxy_passes_on_is_no_local_users_call(
    proxied: Callable[..., Proxied], tmp_path: Path
) -> None:
    """The reverse proxy may run as a user whom the service trusts: its visitors must not spend the configured key."""
    secret = tmp_path / "proxy-secret"
    secret.write_text("a-secret-of-16-or-more")
    secret.chmod(0o600)
    more = f'[serve.trust_user_header]\nheader = "X-Forwarded-User"\nfrom = ["127.0.0.1"]\nsecret_file = "{secret}"\n'
    gate = proxied(fake='key_env = "FAKE_KEY"', more=more, FAKE_KEY="sk-of-the-config")
    passed_on = {"X_Forwarded_User": "alice", "X_Fleetgate_Proxy_Secret": "a-secret-of-16-or-more"}
    assert gate.chat(x_api_key="").status == 200, "a local user may"
    assert gate.chat(x_api_key="", **passed_on).status == 401
    assert gate.chat(x_api_key="", **{**passed_on, "X_Fleetgate_Proxy_Secret": "a guess"}).status == 401
    password = gate.chat(x_api_key="", Authorization="Basic YWxpY2U6cGFzc3dvcmQ=", **passed_on)
    assert (password.status, "YWxpY2U6" in repr(gate.provider.seen)) == (401, False)
    key = create(gate, "ci", "--project", "web")
    assert gate.chat(x_api_key=key, **passed_on).status == 200, "with an access key, it may"
