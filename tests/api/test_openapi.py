"""H2: `/openapi.json` is complete and true. schemathesis asks what it describes and finds no 5xx, no status that is not
documented, no answer of another shape. docs/http.md names every route."""

from __future__ import annotations

import re
from pathlib import Path
from traceback import format_exception
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.api.served import Served

PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
STREAM = "/v1/events"
EXAMPLES = 12
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
OPERATORS = ("/metrics", "/healthz", "/readyz")  # named there without their method


@pytest.fixture(scope="module")
def document(served: Served) -> Any:
    answer = served.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    return answer.json


def operations(document: Any) -> list[tuple[str, str, Any]]:
    return [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method in ("get", "put", "post", "delete")
    ]


def test_h2_every_route_of_the_document_is_on_the_page(document: Any):
    for method, path, _ in operations(document):
        assert f"`{method} {path.replace('{ident}', '{id}')}" in PAGE or path in ("/metrics", "/healthz", "/readyz"), (
            path
        )


def test_h2_every_route_of_the_page_is_in_the_document(document: Any):
    known = {f"{method} {path.replace('{ident}', '{id}')}" for method, path, _ in operations(document)}
    named = {f"{method} {path}" for method, path in re.findall(r"`(GET|PUT|POST|DELETE) (/[^ ?`…]+)", PAGE)}
    assert named - known == set()


def test_the_typescript_client_was_generated_from_this_document(document: Any):
    schema = (Path(__file__).parents[2] / "clients" / "typescript" / "src" / "schema.ts").read_text()
    routes = set(re.findall(r'^    "(/v1/[^"]+)": \{$', schema, re.M))
    assert routes == {path for path in document["paths"] if path.startswith("/v1/")}, "type `make client`"
    names = set(re.findall(r"^        (\w+): (?:\{|components|\")", schema, re.M))
    assert set(document["components"]["schemas"]) <= names, "type `make client`"


def test_h3_every_v1_route_documents_its_errors_and_its_body(document: Any):
    for method, path, operation in operations(document):
        assert operation.get("summary"), path
        if path.startswith("/v1/"):
            assert {"400", "401", "403", "503"} <= set(operation["responses"]), path
        if method in ("PUT",):
            assert "requestBody" in operation, (method, path)


def test_h2_the_page_for_people_has_every_route(served: Served, document: Any):
    page = served.get("/docs").body.decode()
    for _, path, _ in operations(document):
        assert path in page


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.value)
def test_h2_schemathesis_finds_nothing(served: Served, document: Any, mode: GenerationMode):
    paths = {path: methods for path, methods in document["paths"].items() if path != STREAM}  # which has no end
    schema = schemathesis.openapi.from_dict({**document, "paths": paths})
    found: list[str] = []
    asked: set[str] = set()
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result
        operation = result.ok()
        if mode is GenerationMode.NEGATIVE and not can_be_wrong(document["paths"][operation.path][operation.method]):
            continue
        try:
            ask_all(served, operation, mode, asked)
        except (Exception, FailureGroup) as error:
            said = "".join(format_exception(error))[-3000:]
            found.append(f"{operation.method.upper()} {operation.path}: {str(error)[:1000]}\n{said}")
    assert not found, "\n\n".join(found)
    assert len(asked) > 20
    assert served.get("/readyz").status == 200


def can_be_wrong(operation: Any) -> bool:
    """Whether there is anything in it but a name in the path, which may be any text."""
    return "requestBody" in operation or any(each["in"] != "path" for each in operation.get("parameters", ()))


def ask_all(served: Served, operation: Any, mode: GenerationMode, asked: set[str]) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        if isinstance(case.body, dict) and isinstance(case.body.get("wait_s"), int | float):
            case.body["wait_s"] = min(case.body["wait_s"], 0.05)
        asked.add(f"{operation.method} {operation.path}")
        case.call_and_validate(
            base_url=f"http://127.0.0.1:{served.port}",
            headers={"Authorization": f"Bearer {served.token}"},
            checks=CHECKS,
            timeout=60,
        )

    ask()
