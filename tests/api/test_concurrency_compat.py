"""H1: the routes of existing clients, byte for byte in their errors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import time

import pytest

from fleetgate.testing import FakeProvider
from tests.api.served import Served

UNKNOWN = b'{"error":"No concurrency configuration for this provider"}'
BAD_JSON = b'{"error":"Invalid JSON body"}'
BAD_LIMIT = b'{"error":"Body must be { limit: <positive integer> }"}'
BAD_COOLDOWN = b'{"error":"Body must be { cooldownMs: <non-negative integer> }"}'


def put(served: Served, path: str, body: object) -> tuple[int, bytes]:
    answer = served.request("PUT", f"/concurrency/{path}", body, token="")
    return answer.status, answer.body


def get(served: Served, path: str) -> tuple[int, bytes]:
    answer = served.get(f"/concurrency/{path}")
    assert answer.headers["content-type"] == "application/json"
    return answer.status, answer.body


def test_h1_a_limit_is_set_read_listed_and_removed_without_a_token(served: Served):
    assert put(served, "limits/alpha", {"limit": 4}) == (200, b'{"providerId":"alpha","limit":4}')
    assert get(served, "limits/alpha") == (200, b'{"providerId":"alpha","limit":4}')
    assert get(served, "limits") == (200, b'{"limits":[{"providerId":"alpha","limit":4}]}')
    removed = served.request("DELETE", "/concurrency/limits/alpha", token="")
    assert (removed.status, removed.body) == (200, b'{"ok":true,"providerId":"alpha"}')
    assert get(served, "limits/alpha") == (404, UNKNOWN)
    assert get(served, "limits") == (200, b'{"limits":[]}')
    again = served.request("DELETE", "/concurrency/limits/alpha", token="")
    assert (again.status, again.body) == (200, b'{"ok":true,"providerId":"alpha"}')


def test_h1_a_cap_is_listed_before_any_traffic_with_all_its_fields(served: Served):
    put(served, "limits/beta", {"limit": 2})
    expected = (
        b'{"providerId":"beta","limit":2,"inFlight":0,"queued":0,"paused":false,"cooldownMs":350,"autoReduced":false}'
    )
    status, body = get(served, "status")
    assert status == 200
    assert expected in body
    served.request("DELETE", "/concurrency/limits/beta", token="")


@pytest.mark.parametrize(
    "body", [{}, {"limit": 0}, {"limit": -1}, {"limit": 1.5}, {"limit": "4"}, {"limit": True}, {"limit": None}, [4], 4]
)
def test_h1_what_is_not_a_positive_integer_is_refused_in_these_words(served: Served, body: object):
    assert put(served, "limits/gamma", body) == (400, BAD_LIMIT)
    assert get(served, "limits/gamma") == (404, UNKNOWN)


@pytest.mark.parametrize(
    "body", [{}, {"cooldownMs": -1}, {"cooldownMs": 0.5}, {"cooldownMs": True}, {"cooldownMs": "1"}]
)
def test_h1_what_is_not_a_non_negative_integer_is_refused_in_these_words(served: Served, body: object):
    assert put(served, "cooldown/gamma", body) == (400, BAD_COOLDOWN)
    assert get(served, "cooldown/gamma") == (404, UNKNOWN)


@pytest.mark.parametrize("path", ["limits/gamma", "cooldown/gamma"])
@pytest.mark.parametrize("body", [b"", b"{", b"nonsense", b"\xff", b'{"x": "\xff"}'])
def test_h1_a_body_that_is_not_json_is_refused_in_these_words(served: Served, path: str, body: bytes):
    assert put(served, path, body) == (400, BAD_JSON)


def test_h1_k3_a_cooldown_is_remembered_without_a_cap_and_applies_when_one_is_set(served: Served):
    assert get(served, "cooldown/delta") == (404, UNKNOWN)
    assert put(served, "cooldown/delta", {"cooldownMs": 0}) == (200, b'{"providerId":"delta","cooldownMs":0}')
    assert get(served, "cooldown/delta") == (200, b'{"providerId":"delta","cooldownMs":0}')
    assert get(served, "limits/delta") == (404, UNKNOWN)
    put(served, "limits/delta", {"limit": 1})
    assert get(served, "cooldown/delta") == (200, b'{"providerId":"delta","cooldownMs":0}')
    served.request("DELETE", "/concurrency/limits/delta", token="")


def test_h1_an_id_may_be_a_model_or_name_an_account(served: Served):
    assert put(served, "limits/umans%2Fcoder", {"limit": 3}) == (200, b'{"providerId":"umans/coder","limit":3}')
    assert get(served, "limits/umans%2Fcoder") == (200, b'{"providerId":"umans/coder","limit":3}')
    assert put(served, "limits/umans@work", {"limit": 2}) == (200, b'{"providerId":"umans@work","limit":2}')
    assert get(served, "limits/umans%40work") == (200, b'{"providerId":"umans@work","limit":2}')
    for ident in ("umans%2Fcoder", "umans@work"):
        served.request("DELETE", f"/concurrency/limits/{ident}", token="")


def test_h1_reduction_notice_and_pause_are_told_and_survive_a_restart(fresh: Served):
    put(fresh, "limits/umans", {"limit": 4})
    lease = fresh.lease().json["lease"]
    fresh.ok("POST", f"/v1/leases/{lease}/release", {"outcome": "rate_limited", "retry_after_s": 600})
    before = fresh.get("/concurrency/status").json["providers"]
    (told,) = before
    assert (told["limit"], told["paused"], told["autoReduced"], told["autoReducedFrom"]) == (3, True, True, 4)
    assert told["notice"].startswith("auto-reduced to 3 after a rate limit (cap 4): restore with ")
    assert get(fresh, "limits/umans") == (200, b'{"providerId":"umans","limit":3}')
    assert get(fresh, "limits") == (200, b'{"limits":[{"providerId":"umans","limit":3}]}')
    assert 0 < told["pausedUntil"] - time() * 1000 <= 601_000
    fresh.kill()
    fresh.start()
    after = fresh.get("/concurrency/status").json["providers"]
    assert abs(after[0].pop("pausedUntil") - before[0].pop("pausedUntil")) <= 1000  # shown in wall time
    assert [{**one, "inFlight": 0} for one in after] == [{**one, "inFlight": 0} for one in before]


def test_h1_in_flight_counts_slots_that_cool_down(fresh: Served):
    put(fresh, "limits/umans", {"limit": 2})
    put(fresh, "cooldown/umans", {"cooldownMs": 60_000})
    leases = [fresh.lease().json["lease"] for _ in range(2)]
    fresh.ok("POST", f"/v1/leases/{leases[0]}/release")
    (told,) = fresh.get("/concurrency/status").json["providers"]
    assert told["inFlight"] == 2


def test_h5_concurrency_token_closes_the_routes_to_those_without_one(tmp_path):
    with Served(tmp_path, "[serve]\nconcurrency_token = true\n") as served:
        assert put(served, "limits/alpha", {"limit": 4})[0] == 401
        assert served.request("PUT", "/concurrency/limits/alpha", {"limit": 4}).status == 200
        assert served.get("/concurrency/status").status == 200


def test_h1_a_store_that_is_gone_is_told_in_these_words(fresh: Served):
    for path in fresh.home.glob("fleetgate.*"):
        path.unlink()
    fresh.home.joinpath("fleetgate.db").mkdir()
    answer = fresh.wait_until(
        lambda: (found := fresh.get("/concurrency/status")).status == 503 and found, "the store is missed"
    )
    assert answer.body == b'{"error":"Concurrency service not available"}'


def test_a_limit_of_a_provider_that_can_be_asked_leads_to_a_question_when_somebody_waits(tmp_path: Path):
    with FakeProvider(keys=["sk-test"]) as provider:
        config = (
            f'[providers.umans]\nbase_url = "{provider.url}/v1"\nkey_env = "UMANS_TEST_KEY"\n'
            'usage_path = "/usage"\nusage_field = "usage.concurrent_sessions"\n'
        )
        with Served(tmp_path, config, UMANS_TEST_KEY="sk-test") as served:
            put(served, "limits/umans", {"limit": 1})
            (cap,) = [each for each in served.get("/v1/caps").json["caps"] if each["selector"] == "umans"]
            assert cap["usage_gate"]
            first = served.lease().json["lease"]
            with ThreadPoolExecutor(1) as pool:
                second = pool.submit(served.lease, wait_s=30)
                served.wait_until(lambda: served.get("/v1/status").json["waiting"] == 1, "the second in the queue")
                served.ok("POST", f"/v1/leases/{first}/release")
                assert second.result().status == 201
            assert provider.stats.usage_asked >= 1


def test_a_cap_over_http_takes_the_usage_gate(fresh: Served):
    body = {"selector": "umans", "cap": 4, "kind": "requests", "usage_gate": True}
    assert fresh.ok("PUT", "/v1/caps", body)["usage_gate"] is True
    assert fresh.ok("PUT", "/v1/caps", {**body, "usage_gate": False})["usage_gate"] is False
