"""The router by itself: which function answers, with which arguments, and what its document says."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct, json

from fleetgate.api.app import all_routes, describe
from fleetgate.api.errors import refusal
from fleetgate.api.router.openapi import openapi_document
from fleetgate.api.router.route import ApiRequest, ApiResponse, Header, Parameter, delete, get, post, put
from fleetgate.api.router.router import Router
from fleetgate.api.security.caller import OWNER

Count = Annotated[int, Meta(ge=0, le=10, description="how many")]


class Body(Struct, forbid_unknown_fields=True):
    """What is stored."""

    name: Annotated[str, Meta(min_length=1)]
    size: int = 1


class Stored(Struct):
    name: str
    size: int


@get("/things", summary="All")
async def things(
    store: dict[str, int],
    limit: Count = 3,
    kind: Annotated[Literal["a", "b"], Meta(description="one of them")] | None = None,
    everything: Annotated[bool, Parameter("all")] = False,
    trace: Annotated[Annotated[str, Meta(max_length=5)] | None, Header("X-Trace")] = None,
) -> list[Any]:
    return [sorted(store), limit, kind, everything, trace]


@post("/things", summary="One more")
async def add(store: dict[str, int], data: Body) -> Stored:
    store[data.name] = data.size
    return Stored(data.name, data.size)


@get("/things/{name}", summary="One")
async def one(store: dict[str, int], name: Annotated[str, Meta(max_length=8)]) -> ApiResponse[Stored]:
    if name not in store:
        return ApiResponse(Stored(name, 0), status=203, headers={"x-missing": "yes"})
    return ApiResponse(Stored(name, store[name]))


@delete("/things/{name}", summary="One less")
async def remove(store: dict[str, int], name: str, data: Body | None = None) -> Body | None:
    store.pop(name)
    return data


@get("/things/special", summary="Another one")
async def special() -> str:
    return "special"


@put("/files/{path:path}", summary="A file", media_type="text/plain")
async def write(request: ApiRequest, path: str) -> str:
    return f"{path}={(await request.body()).decode()}"


@get("/needs", summary="An argument that has no default")
async def needs(what: str) -> str:
    return what


ROUTES = [things, add, one, remove, special, write, needs]


class Answered(Struct):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.decode(self.body)


def ask(method: str, target: str, *parts: bytes, store: dict[str, int] | None = None, **headers: str) -> Answered:
    path, _, query = target.partition("?")
    scope = {
        "state": {"caller": OWNER},
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages.append({"type": "http.request", "body": b"", "more_body": False})
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    def on_error(_: ApiRequest, error: Exception) -> ApiResponse[Any]:
        status, shape, extra = refusal(error)
        return ApiResponse(shape, status=status, headers=extra, media_type="application/json")

    router = Router(ROUTES, {"store": {"x": 1} if store is None else store}, on_error)
    asyncio.run(router(scope, receive, send))
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answered(sent[0]["status"], found, b"".join(each.get("body", b"") for each in sent))


def test_arguments_come_from_the_query_headers_and_what_the_router_is_given():
    assert ask("GET", "/things").json == [["x"], 3, None, False, None]
    assert ask("GET", "/things?limit=7&kind=b&all=true&other=1", x_trace="abc").json == [["x"], 7, "b", True, "abc"]
    assert ask("GET", "/things?limit=1&limit=2").json[1] == 2


@pytest.mark.parametrize(
    ("target", "field", "text"),
    [
        ("/things?limit=x", "limit", "expected `int`, got `str`"),
        ("/things?limit=11", "limit", "expected `int` <= 10"),
        ("/things?limit=", "limit", "expected `int`, got `str`"),
        ("/things?kind=c", "kind", "invalid enum value 'c'"),
        ("/things?kind=null", "kind", "invalid enum value 'null'"),
        ("/things?all=maybe", "all", "expected `bool`, got `str`"),
        ("/needs", "what", "missing; this query parameter is required"),
        ("/things/much-too-long", "name", "expected `str` of length <= 8"),
    ],
)
def test_an_argument_that_is_not_valid_is_refused_by_its_name_in_requests(target: str, field: str, text: str):
    answered = ask("GET", target)
    assert answered.status == 400
    assert answered.json == {"error": f"{field}: {text}", "reason": "bad_request", "field": field}


def test_a_header_that_is_not_valid_is_refused_by_its_name():
    assert ask("GET", "/things", x_trace="abcdef").json["field"] == "X-Trace"


def test_a_query_with_very_many_parameters_is_refused():
    assert ask("GET", "/things?" + "&".join(["a=1"] * 200)).status == 400


def test_a_body_in_parts_is_read_into_its_type():
    store: dict[str, int] = {}
    answered = ask("POST", "/things", b'{"name":', b'"y", "size": 4}', store=store)
    assert (answered.status, answered.json, store) == (201, {"name": "y", "size": 4}, {"y": 4})
    assert answered.headers["content-length"] == str(len(answered.body))


@pytest.mark.parametrize(
    ("body", "error", "field"),
    [
        (b"", "the body: missing; send JSON", None),
        (b"{", "the body is not JSON: Input data was truncated", None),
        (b"null", "the body: expected `object`, got `null`", None),
        (b'{"name": ""}', "name: expected `str` of length >= 1", "name"),
        (b'{"name": "x", "more": 1}', "the body: object contains unknown field `more`", "more"),
        (b'{"name": "\xff"}', "the body is not JSON: it is not UTF-8 text", None),
    ],
)
def test_a_body_that_is_not_valid_changes_nothing(body: bytes, error: str, field: str | None):
    store: dict[str, int] = {}
    answered = ask("POST", "/things", body, store=store)
    assert (answered.status, answered.json["error"], answered.json.get("field"), store) == (400, error, field, {})


def test_a_body_with_a_default_may_be_left_out():
    assert ask("DELETE", "/things/x").json is None
    assert ask("DELETE", "/things/x", b"null").json is None
    assert ask("DELETE", "/things/x", b'{"name":"z"}').json == {"name": "z", "size": 1}


def test_a_response_may_have_its_own_status_and_headers():
    answered = ask("GET", "/things/none")
    assert (answered.status, answered.headers["x-missing"]) == (203, "yes")
    assert ask("GET", "/things/x").status == 200


def test_a_fixed_path_comes_before_a_name_and_its_other_methods_reach_the_name():
    assert ask("GET", "/things/special").json == "special"
    assert ask("DELETE", "/things/special", store={"special": 1}).status == 200


def test_a_name_in_a_path_is_one_segment_and_a_path_is_all_the_rest():
    assert ask("GET", "/things/a/b").status == 404
    answered = ask("PUT", "/files/a/b//c", b"text")
    assert (answered.body, answered.headers["content-type"]) == (b"a/b//c=text", "text/plain; charset=utf-8")


def test_a_slash_at_the_end_means_nothing_and_elsewhere_it_does():
    assert ask("GET", "/things/").status == ask("GET", "/things//").status == 200
    assert ask("GET", "//things").status == ask("GET", "/things//x").status == 404


def test_a_method_that_a_path_is_not_for_is_refused_with_those_that_it_has():
    answered = ask("PATCH", "/things")
    assert (answered.status, answered.headers["allow"]) == (405, "GET, OPTIONS, POST")
    assert "valid is GET, OPTIONS, POST" in answered.json["error"]
    assert ask("OPTIONS", "/things").headers["allow"] == "GET, OPTIONS, POST"
    assert ask("OPTIONS", "/things").status == 204
    assert ask("OPTIONS", "/nothing").status == 404


def test_a_client_that_leaves_before_its_body_is_complete_gets_no_answer():
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    def on_error(_: ApiRequest, error: Exception) -> ApiResponse[Any]:
        raise error

    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/things", "query_string": b"", "headers": []}
    scope["state"] = {"caller": OWNER}
    asyncio.run(Router(ROUTES, {"store": {}}, on_error)(scope, receive, send))
    assert sent == []


def test_a_type_that_cannot_be_read_fails_when_the_router_is_made():
    @get("/wrong")
    async def wrong(number: Annotated[int, Meta(min_length=1)]) -> str:
        return str(number)

    with pytest.raises(TypeError):
        Router([wrong], {}, lambda _, error: ApiResponse(error))


def test_the_document_describes_what_the_router_reads():
    document = openapi_document(ROUTES, frozenset(("store",)), {"title": "Things", "version": "1"})
    listed = document["paths"]["/things"]["get"]
    assert listed["operationId"] == "ThingsThings"
    assert [(each["name"], each["in"], each["required"]) for each in listed["parameters"]] == [
        ("limit", "query", False),
        ("kind", "query", False),
        ("all", "query", False),
        ("X-Trace", "header", False),
    ]
    limit = listed["parameters"][0]
    assert limit["description"] == "how many"
    assert limit["schema"] == {"type": "integer", "minimum": 0, "maximum": 10, "default": 3}
    body = document["paths"]["/things"]["post"]["requestBody"]
    assert body == {
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Body"}}},
        "required": True,
    }
    assert not document["paths"]["/things/{name}"]["delete"]["requestBody"]["required"]
    assert document["components"]["schemas"]["Body"]["additionalProperties"] is False
    assert document["components"]["schemas"]["Body"]["description"] == "What is stored."
    assert list(document["paths"]["/files/{path}"]) == ["put"]


def test_no_two_operations_of_the_service_have_the_same_id_or_place():
    routes = all_routes()
    assert len({(each.method, each.path) for each in routes}) == len(routes)
    document = describe(routes, "1")
    ids = [operation["operationId"] for each in document["paths"].values() for operation in each.values()]
    assert len(ids) > 50
    assert len(set(ids)) == len(ids)
