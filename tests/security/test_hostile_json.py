"""Bodies that are JSON in name only: nested too deeply, with numbers and text that nothing can hold. 400, never 500."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from fleetgate.proxy.request_body import with_model
from fleetgate.testing.provider import FakeProvider
from tests.api.served import Served
from tests.proxy.proxied import Proxied

DEEP = 30_000
HOSTILE = {
    "deep lists": b"[" * DEEP,
    "deep lists that end": b"[" * DEEP + b"]" * DEEP,
    "deep objects": b'{"a":' * (DEEP // 5),
    "deep objects that end": b'{"a":' * (DEEP // 5) + b"1" + b"}" * (DEEP // 5),
    "a deep field": b'{"%s": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "a deep unknown field": b'{"nothing": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "a huge number": b'{"%s": ' + b"9" * 5000 + b"}",
    "a number beyond floats": b'{"%s": 1e999}',
    "a negative number beyond floats": b'{"%s": -1e999}',
    "not a number": b'{"%s": NaN}',
    "infinity": b'{"%s": Infinity}',
    "half a surrogate pair": b'{"%s": "\\ud800"}',
    "half a surrogate pair in a name": b'{"\\udfff": 1}',
    "half a surrogate pair in UTF-8": b'{"%s": "\xed\xa0\x80"}',
    "not UTF-8": b'{"%s": "\xff\xfe"}',
    "a zero byte": b'{"%s": "\x00"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"%s": 1}',
    "twice the same name": b'{"%s": [[]], "%s": {"a": {}}}',
    "nothing but blanks": b"   ",
    "a lone quote": b'"',
    "null": b"null",
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served")) as served:
        yield served


def routes_with_a_body(served: Served) -> list[tuple[str, str, list[str]]]:
    """Method, path, and the fields of the body."""
    document = served.get("/openapi.json").json
    found = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            if content:
                asked = path.replace("{ident}", "none").replace("{provider}", "none")
                found.append((method.upper(), asked, fields_of(document, content["application/json"]["schema"])))
    return found


def fields_of(document: Any, schema: Any) -> list[str]:
    for part in (schema, *schema.get("oneOf", ()), *schema.get("anyOf", ())):
        if "$ref" in part:
            part = document["components"]["schemas"][part["$ref"].rpartition("/")[2]]
        if part.get("properties"):
            return list(part["properties"])
    return ["a"]


def test_hostile_bodies_are_refused_by_every_route_that_takes_one(served: Served):
    routes = routes_with_a_body(served)
    assert len(routes) > 12
    routes += [("PUT", "/concurrency/limits/umans", ["limit"]), ("PUT", "/concurrency/cooldown/umans", ["cooldownMs"])]
    routes += [("POST", "/v1/leases/none/renew", ["a"]), ("POST", "/v1/jobs/none/cancel", ["a"])]
    wrong = []
    for method, path, fields in routes:
        for what, body in HOSTILE.items():
            for field in fields if b"%s" in body else fields[:1]:
                answer = served.request(method, path, body.replace(b"%s", field.encode()))
                if answer.status >= 500 or answer.status == 0:
                    wrong.append(f"{method} {path} {what} in {field}: {answer.status} {answer.body[:120]!r}")
                if what.startswith("deep") and answer.status not in (400, 404, 413):
                    wrong.append(f"{method} {path} {what}: {answer.status}")
    assert not wrong, "\n".join(wrong)
    assert served.get("/readyz").status == 200


def test_the_direct_handler_and_the_routes_refuse_a_deep_body(served: Served):
    for body in (b"[" * DEEP, b'{"models": ' + b"[" * DEEP, b'{"since": ' + b'{"a":' * 5000):
        direct = served.request("POST", "/v1/leases", body)
        usual = served.request("POST", "/v1/leases/", body)
        assert (direct.status, direct.json) == (usual.status, usual.json)
        assert usual.status == 400


def test_a_hostile_call_of_a_model_is_refused_or_takes_its_slot(tmp_path_factory: pytest.TempPathFactory):
    """A body that a provider might read and the proxy does not must not pass the cap."""
    with (
        FakeProvider() as provider,
        Proxied(tmp_path_factory.mktemp("proxied"), provider, requests="fake = 4") as proxied,
    ):
        deep = b'{"model": "m1", "messages": [], "more": ' + b"[" * DEEP + b"]" * DEEP + b"}"
        answer = proxied.chat(body=deep)
        assert answer.status == 400
        assert "nested" in answer.json["error"]["message"]
        assert provider.stats.calls == 0
        for more in (b"NaN", b"1e999", b'"\\ud800"', b'"\xff"', b"9" * 5000, b'"\x01"'):
            body = b'{"model": "m1", "messages": [{"role": "user", "content": "hi"}], "more": %s}' % more
            answer = proxied.chat(body=body)
            assert answer.headers["x-fleetgate-model"] == "fake/m1" or "fake@" in answer.headers["x-fleetgate-model"], (
                more
            )
        body = json.dumps({"messages": [], "model": "m1"}).encode()
        assert proxied.chat(body=b"\xef\xbb\xbf" + body).headers["x-fleetgate-model"]
        proxied.check_nothing_is_held()


def test_a_body_that_is_not_quite_json_can_still_go_to_the_next_model():
    body = b'{"model": "m1", "more": NaN}'
    assert with_model(body, 'm"2', b"application/json") == b'{"model": "m\\"2", "more": NaN}'


@pytest.mark.parametrize(
    "body",
    [
        pytest.param('{"model": "m1", "messages": []}'.encode("utf-16"), id="UTF-16"),
        pytest.param(b'{"Model": "m1", "messages": []}', id="another letter case"),
        pytest.param(b'{"model": "m1", "messages": [], "more": NaN}', id="NaN, as text"),
    ],
)
def test_a_call_that_only_some_providers_can_read_waits_for_its_slot(
    tmp_path_factory: pytest.TempPathFactory, body: bytes
):
    with (
        FakeProvider() as provider,
        Proxied(tmp_path_factory.mktemp("proxied"), provider, requests='"fake/m1" = 1') as proxied,
    ):
        assert proxied.lease("fake/m1", kind="requests").status == 201
        seen = len(provider.seen)
        answer = proxied.chat(body=body, x_api_key=proxied.token, x_fleetgate_hold="100ms", Content_Type="text/plain")
        assert answer.status == 429, answer.body
        assert len(provider.seen) == seen
