"""The OpenAPI document of routes, made of the same types that requests are read with and answers are written from."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from inspect import cleandoc
from typing import Any

import msgspec

from fleetgate.api.router.arguments import REQUIRED, Argument, answer_type, arguments_of
from fleetgate.api.router.route import JSON, ApiRoute, DocumentedAnswer

_REFERENCE = "#/components/schemas/{name}"
_PLACES = ("path", "query", "header")


def openapi_document(routes: Iterable[ApiRoute], given: frozenset[str], info: dict[str, str]) -> dict[str, Any]:
    """The document; `given` are the names of arguments that no request has."""
    documented = [_Operation(route, given) for route in routes if route.documented]
    types = [kind for each in documented for kind in each.types]
    schemas, components = msgspec.json.schema_components(types, schema_hook=_schema, ref_template=_REFERENCE)
    schema_of = iter(schemas)
    paths: dict[str, dict[str, Any]] = {}
    for each in documented:
        path = re.sub(r"\{(\w+):path\}", r"{\1}", each.route.path)
        paths.setdefault(path, {})[each.route.method.lower()] = each.describe([next(schema_of) for _ in each.types])
    return {
        "openapi": "3.1.0",
        "info": info,
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": {name: _tidied(schema) for name, schema in sorted(components.items())},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _tidied(schema: dict[str, Any]) -> dict[str, Any]:
    """A description of several lines is indented as its docstring is."""
    return {**schema, "description": cleandoc(schema["description"])} if "description" in schema else schema


def _schema(kind: type) -> dict[str, Any]:
    """The schema of a type that msgspec has none for."""
    if kind is object:
        return {"description": "any JSON value"}
    raise NotImplementedError


class _Operation:
    """One route: the types that it needs schemas for, in order, and its description once they are known."""

    def __init__(self, route: ApiRoute, given: frozenset[str]) -> None:
        self.route = route
        arguments = arguments_of(route, given)
        self._parameters = [each for each in arguments if each.place in _PLACES]
        self._body = next((each for each in arguments if each.place == "body"), None)
        own = dict(route.answers)
        if route.status not in own:
            own[route.status] = DocumentedAnswer(
                answer_type(route), HTTPStatus(route.status).description, route.media_type
            )
        self._answers = dict(sorted(own.items()))
        self.types = [
            *(each.type for each in self._parameters),
            *([] if self._body is None else [self._body.type]),
            *(answer.shape for answer in self._answers.values()),
        ]

    def describe(self, schemas: list[dict[str, Any]]) -> dict[str, Any]:
        rest = iter(schemas)
        operation: dict[str, Any] = {"summary": self.route.summary, "operationId": _operation_id(self.route)}
        if parameters := [_parameter(each, next(rest)) for each in self._parameters]:
            operation["parameters"] = parameters
        if self._body is not None:
            required = self._body.default is REQUIRED
            operation["requestBody"] = {"content": {JSON: {"schema": next(rest)}}, "required": required}
        elif self.route.body_schema is not None:
            operation["requestBody"] = {"content": {JSON: {"schema": self.route.body_schema}}, "required": True}
        operation["responses"] = {
            str(status): self._answer(status, answer, next(rest)) for status, answer in self._answers.items()
        }
        return operation

    def _answer(self, status: int, answer: DocumentedAnswer, schema: dict[str, Any]) -> dict[str, Any]:
        described: dict[str, Any] = {"description": answer.description}
        if self.route.headers and status == self.route.status:
            described["headers"] = {name: {"schema": {"type": "string"}} for name in self.route.headers}
        return {**described, "content": {answer.media_type: {"schema": schema}}}


def _parameter(argument: Argument, schema: dict[str, Any]) -> dict[str, Any]:
    schema = dict(schema)
    parameter: dict[str, Any] = {"name": argument.shown, "in": argument.place}
    if "description" in schema:
        parameter["description"] = schema.pop("description")
    required = argument.default is REQUIRED
    if not required and argument.default is not None:
        schema["default"] = argument.default
    return {**parameter, "required": required, "schema": schema}


def _operation_id(route: ApiRoute) -> str:
    words = re.findall(r"[a-zA-Z0-9]+", re.sub(":path", "", route.path) + f"/{route.handler.__name__}")
    return "".join(word[:1].upper() + word[1:] for word in words)
