"""The arguments of a route's function, read from a request."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

import msgspec

from fleetgate.api.errors import RequestRefused, invalid_body, not_json
from fleetgate.api.router.route import ApiRequest, ApiResponse, ApiRoute, Header, Parameter

REQUIRED: Any = inspect.Parameter.empty
_MOST_PARAMETERS = 100  # of a query; none of ours has a tenth of that


class Argument(NamedTuple):
    """One parameter of a route's function."""

    name: str  # in the function
    place: str  # given, request, caller, body, path, query or header
    shown: str  # its name in requests
    type: Any
    default: Any


def arguments_of(route: ApiRoute, given: frozenset[str]) -> list[Argument]:
    """What a route's function needs; `given` are names that the router has values for."""
    hints = get_type_hints(route.handler, include_extras=True)
    in_path = path_names(route.path)
    found = []
    for name, parameter in inspect.signature(route.handler).parameters.items():
        kind, shown, place = hints[name], name, "query"
        if parameter.default is None and name != "data":  # it may be left out, and has a value if it is there
            kind = _without_none(kind)
        for mark in get_args(kind)[1:] if get_origin(kind) is Annotated else ():
            if isinstance(mark, Parameter | Header):
                shown, place = mark.name, "header" if isinstance(mark, Header) else "query"
        if name in given:
            place = "given"
        elif name in ("request", "caller"):
            place = name
        elif name == "data":
            place = "body"
        elif name in in_path:
            place = "path"
        found.append(Argument(name, place, shown, kind, parameter.default))
    return found


def _without_none(kind: Any) -> Any:
    """The type `X` of `X | None`, with its marks wherever they are."""
    if get_origin(kind) is Annotated:
        inner, *marks = get_args(kind)
        return Annotated[_without_none(inner), *marks]
    return reduce(or_, [each for each in get_args(kind) if each is not NoneType])


def path_names(path: str) -> list[str]:
    return [part[1:-1].partition(":")[0] for part in path.split("/") if part.startswith("{")]


def answer_type(route: ApiRoute) -> Any:
    """The type of a route's usual answer."""
    kind = get_type_hints(route.handler, include_extras=True)["return"]
    return get_args(kind)[0] if get_origin(kind) is ApiResponse else kind


class ArgumentReader:
    """Reads all arguments of one route. What is not valid is refused with a sentence that names it."""

    def __init__(self, route: ApiRoute, given: Mapping[str, Any]) -> None:
        arguments = arguments_of(route, frozenset(given))
        self._given = {each.name: given[each.name] for each in arguments if each.place == "given"}
        self._request = [each.name for each in arguments if each.place == "request"]
        self._caller = [each.name for each in arguments if each.place == "caller"]
        self._path = [each for each in arguments if each.place == "path"]
        self._query = [each for each in arguments if each.place == "query"]
        self._headers = [each for each in arguments if each.place == "header"]
        body = [each for each in arguments if each.place == "body"]
        self._body = body[0] if body else None
        for each in arguments:
            if each.place not in ("given", "request", "caller"):
                msgspec.json.Decoder(each.type)  # TypeError now, not at a request, if it is no type that can be read
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(body[0].type if body else Any).decode

    async def read(self, request: ApiRequest, in_path: Mapping[str, str]) -> dict[str, Any]:
        values = dict(self._given)
        for name in self._request:
            values[name] = request
        for name in self._caller:
            values[name] = request.caller
        for each in self._path:
            values[each.name] = _value(each, in_path.get(each.name))
        if self._query:
            query = _query(request.scope["query_string"])
            for each in self._query:
                values[each.name] = _value(each, query.get(each.shown))
        for each in self._headers:
            values[each.name] = _value(each, request.header(each.shown.lower()))
        if self._body is not None:
            values[self._body.name] = self._document(self._body, await request.body())
        return values

    def _document(self, argument: Argument, body: bytes) -> Any:
        if not body:
            if argument.default is REQUIRED:
                raise RequestRefused(400, "bad_request", "the body: missing; send JSON")
            return argument.default
        try:
            return self._decode(body)
        except msgspec.MsgspecError as error:
            raise unreadable(error) from error


def unreadable(error: msgspec.MsgspecError) -> RequestRefused:
    """A body that cannot be read, as a refusal that names the first wrong field."""
    if isinstance(error, msgspec.ValidationError):
        text, _, where = str(error).partition(" - at `$")
        return invalid_body(text, where.rstrip("`").lstrip("."))
    return not_json(error)


def _query(text: bytes) -> dict[str, str]:
    """The parameters of a query. Of one that is there twice, the last counts."""
    try:
        return dict(parse_qsl(text.decode("latin-1"), keep_blank_values=True, max_num_fields=_MOST_PARAMETERS))
    except ValueError:
        raise RequestRefused(400, "bad_request", f"the query has more than {_MOST_PARAMETERS} parameters") from None


def _value(argument: Argument, text: str | None) -> Any:
    if text is None:
        if argument.default is REQUIRED:
            sentence = f"{argument.shown}: missing; this {argument.place} parameter is required"
            raise RequestRefused(400, "bad_request", sentence, field=argument.shown)
        return argument.default
    try:
        return msgspec.convert(text, argument.type, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_body(str(error), argument.shown) from error
