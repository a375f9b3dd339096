"""The service works with exactly what `pip install 'fleetgate[serve]'` brings.

The development environment has many more packages, and a framework that finds one of them takes another path. So a
service is started that cannot import anything but its own requirements, and theirs.
"""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.api.served import Served

# Python imports this when it starts, if it is found.
BLOCK = """
import os, sys

class Blocked:
    names = frozenset(os.environ["BLOCKED_PACKAGES"].split(","))

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in cls.names:
            raise ModuleNotFoundError(f"No module named {name!r} (not a requirement of fleetgate[serve])", name=name)

sys.meta_path.insert(0, Blocked)
"""
FIRST = ("/docs", "/openapi.json")
FILES = ("/", "/docs.css", "/favicon.ico", "/assets/js/app.js", "/assets/css/base.css")


def required(name: str, extras: frozenset[str]) -> set[str]:
    """The distributions that are installed with this one."""
    found: dict[str, frozenset[str]] = {}
    open_ones = [(canonicalize_name(name), extras)]
    while open_ones:
        name, extras = open_ones.pop()
        if name in found and extras <= found[name]:
            continue
        found[name] = extras = found.get(name, frozenset()) | extras
        try:
            lines = distribution(name).requires or []
        except PackageNotFoundError:
            continue  # by its marker, for another system
        for requirement in map(Requirement, lines):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                open_ones.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return set(found)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("clean")
    (home / "sitecustomize.py").write_text(BLOCK)
    allowed = required("fleetgate", frozenset(["serve"]))
    assert {"uvloop", "httptools", "msgspec"} <= allowed
    blocked = [
        module
        for module, owners in packages_distributions().items()
        if not {canonicalize_name(owner) for owner in owners} & allowed and module not in ("", "sitecustomize")
    ]
    assert {"pytest", "hypothesis", "schemathesis"} <= set(blocked)  # which the development environment has
    with Served(home, PYTHONPATH=str(home), BLOCKED_PACKAGES=",".join(blocked)) as served:
        yield served


def test_the_service_brings_at_most_25_packages():
    assert len(required("fleetgate", frozenset(["serve"]))) <= 25


def status_of(served: Served, path: str) -> int:
    """The status alone: the stream of events has no end."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {served.token}"})
        return connection.getresponse().status
    finally:
        connection.close()


def test_every_page_and_every_route_that_reads_answers(served: Served):
    for path in (*FIRST, *FILES):
        assert status_of(served, path) == 200, path
    document = served.get("/openapi.json").json
    reading = [path for path, methods in document["paths"].items() if "get" in methods]
    assert len(reading) > 20
    for path in reading:
        assert status_of(served, path.replace("{ident}", "none").replace("{provider}", "none")) < 500, path


def test_what_is_wrong_is_refused_and_changes_work(served: Served):
    assert status_of(served, "/nowhere") == 404
    assert served.request("PUT", "/v1/status", {}).status == 405
    assert served.request("PUT", "/v1/caps", {"selector": 3}).status == 400
    assert served.request("PUT", "/v1/caps", b"{").status == 400
    assert served.request("PUT", "/v1/caps", {"selector": "safe", "cap": 2}).status == 200
    assert served.lease("safe/model").status == 201
    assert served.stop() == 0
    served.start()
