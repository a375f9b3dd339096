"""The Helm chart, rendered with the values of the tests: python tools/render_chart.py

It writes tests/deploy/rendered/*.yaml, which the tests look at. It needs `helm`. The tests compare a hash of the chart
and the values, so that a chart that was changed and not rendered again is noticed where there is no `helm`.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy" / "helm" / "fleetgate"
TESTS = ROOT / "tests" / "deploy"
RELEASE = ("gate", "--namespace", "agents")


def main() -> int:
    subprocess.run(["helm", "lint", "--strict", CHART], check=True)
    for values in value_files():
        (TESTS / "rendered" / values.name).write_text(as_text(rendered(values), values))
    return 0


def value_files() -> list[Path]:
    return sorted((TESTS / "values").glob("*.yaml"))


def rendered(values: Path) -> list[Any]:
    """The objects of the chart with these values, by kind and name."""
    command = ["helm", "template", RELEASE[0], str(CHART), *RELEASE[1:], "--values", str(values)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return in_order(each for each in yaml.safe_load_all(printed) if each)


def in_order(objects: Any) -> list[Any]:
    return sorted(objects, key=lambda each: (each["kind"], each["metadata"]["name"]))


def as_text(objects: list[Any], values: Path) -> str:
    head = f"# Made by tools/render_chart.py from {digest(values)}\n"
    return head + str(yaml.safe_dump_all(objects, sort_keys=True, width=120))


def digest(values: Path) -> str:
    """A hash of everything that the rendered objects depend on."""
    found = hashlib.sha256()
    for path in [*sorted(path for path in CHART.rglob("*") if path.is_file()), values]:
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:32]


if __name__ == "__main__":
    sys.exit(main())
