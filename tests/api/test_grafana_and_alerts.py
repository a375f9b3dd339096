"""The Grafana dashboard and the alerts in deploy/ name metrics and labels that a real service has, in valid PromQL."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from fleetgate.api.metrics.prometheus import LABELS, METRICS
from tests.api.served import Served

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "fleetgate.json").read_text())
RULES = DEPLOY / "prometheus" / "alerts.yaml"
EVERYWHERE = {"le", "instance", "job"}  # what Prometheus adds


def panels() -> Iterator[dict[str, Any]]:
    return (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def queries() -> dict[str, tuple[str, str]]:
    """By where it is: an expression, and the text that uses its labels."""
    found = {
        f"{panel['title']} {target['refId']}": (target["expr"], target.get("legendFormat", ""))
        for panel in panels()
        for target in panel["targets"]
    }
    return found | {rule["alert"]: (rule["expr"], rule["annotations"]["summary"]) for rule in alerts()}


@pytest.fixture(scope="module")
def metrics(served: Served) -> dict[str, set[str]]:
    """The labels of every metric of a real service, by name."""
    served.cap("umans", 1)
    served.ok("POST", "/v1/budgets", {"selector": "umans", "amount": 5, "unit": "usd", "per": "day"})
    served.ok("PUT", "/v1/backoffs", {"key": "openai", "reason": "auth"})
    assert served.cli("observe", "--window", "5h", "--used", "63%", "--resets-in", "2h10m").returncode == 0
    served.wait_until(lambda: b"fleetgate_plan_used_ratio" in served.get("/metrics").body, "the plan window")
    text = served.get("/metrics").body.decode()
    found: dict[str, set[str]] = {}
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M):
        for ending in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            found[name + ending] = set(LABELS.get(name, ()))
    for name, labels in re.findall(r"^(\w+)\{(.*)\} ", text, re.M):
        found[name] |= set(re.findall(r'(\w+)="', labels))
    return found


@pytest.mark.parametrize("where", queries())
def test_a_query_is_valid_and_names_what_the_service_has(where: str, metrics: dict[str, set[str]]):
    expr, text = queries()[where]
    plain = expr.replace("$__rate_interval", "5m").replace("$pool", ".*").replace("$project", ".*")
    promql_parser.parse(plain)
    names = set(re.findall(r"\b(?:fleetgate|process)_\w+", expr)) - {"up"}
    assert names <= set(metrics) or names == set(), names - set(metrics)
    labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expr))
    labels |= {word for group in re.findall(r"(?:by|on|group_left) \(([^)]*)\)", expr) for word in group.split(", ")}
    labels |= set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", text)) | set(re.findall(r"\$labels\.(\w+)", text))
    known = EVERYWHERE.union(*(metrics[name] for name in names))
    assert labels <= known, labels - known


def test_every_metric_of_the_service_is_on_the_dashboard():
    used = json.dumps(DASHBOARD)
    assert {name for name in METRICS if name not in used} == set()


def test_panels_have_a_place_of_their_own_and_a_description():
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert all(len(panel["description"]) > 8 for panel in panels())
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(numbers) == len(set(numbers))


def test_every_alert_says_what_to_do():
    for rule in alerts():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert "fleetgate" in rule["annotations"]["description"].lower() or "cap" in rule["annotations"]["description"]


def test_promtool_accepts_the_alerts_and_their_tests():
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt install prometheus)")
    for argv in (["check", "rules", str(RULES)], ["test", "rules", str(RULES.with_name("alerts_test.yaml"))]):
        ran = subprocess.run([promtool, *argv], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
