"""The Helm chart, as `helm` rendered it (tools/render_chart.py): with SQLite, with PostgreSQL, and without a volume."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleetgate.api.app import all_routes
from fleetgate.config.file import load
from tests.deploy.test_units import check_command
from tools.render_chart import CHART, TESTS, as_text, digest, rendered, value_files

CASES = [path.stem for path in value_files()]


def objects(case: str) -> dict[str, Any]:
    found = yaml.safe_load_all((TESTS / "rendered" / f"{case}.yaml").read_text())
    return {each["kind"]: each for each in found}


def pods(case: str) -> list[Any]:
    return [each["spec"]["template"]["spec"] for kind, each in objects(case).items() if kind in ("Deployment", "Job")]


def container(case: str) -> Any:
    (found,) = objects(case)["Deployment"]["spec"]["template"]["spec"]["containers"]
    return found


@pytest.mark.parametrize("values", value_files(), ids=lambda path: path.stem)
def test_the_chart_was_rendered_since_it_was_changed(values: Path):
    text = (TESTS / "rendered" / values.name).read_text()
    assert text.startswith(f"# Made by tools/render_chart.py from {digest(values)}\n"), "run tools/render_chart.py"


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
@pytest.mark.parametrize("values", value_files(), ids=lambda path: path.stem)
def test_helm_renders_what_the_tests_look_at(values: Path):
    assert as_text(rendered(values), values) == (TESTS / "rendered" / values.name).read_text()


@pytest.mark.parametrize("case", CASES)
def test_no_pod_has_rights_or_writes_its_image(case: str):
    for pod in pods(case):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 10001
        for each in pod["containers"]:
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            check_command(each["args"])


@pytest.mark.parametrize("case", CASES)
def test_probes_ask_routes_that_exist_on_the_port_that_is_open(case: str):
    paths = {route.path for route in all_routes() if route.method == "GET"}
    found = container(case)
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert found[probe]["httpGet"]["path"] in paths
        assert found[probe]["httpGet"]["port"] == found["ports"][0]["name"]
    assert str(found["ports"][0]["containerPort"]) in found["args"]


@pytest.mark.parametrize("case", CASES)
def test_the_config_is_valid_and_names_the_hosts_that_clients_use(case: str, tmp_path: Path):
    (tmp_path / "config.toml").write_text(objects(case)["ConfigMap"]["data"]["config.toml"])
    loaded = load(str(tmp_path / "config.toml"))
    assert loaded is not None
    name = objects(case)["Service"]["metadata"]["name"]
    hosts = loaded.settings.serve.hosts
    assert {name, f"{name}.agents.svc"} <= set(hosts)
    if case == "postgres":
        assert {"gate.example.org", "gate.internal"} <= set(hosts)


@pytest.mark.parametrize("case", CASES)
def test_what_a_pod_mounts_and_reads_is_there(case: str):
    found = objects(case)
    pod = found["Deployment"]["spec"]["template"]["spec"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert {each["name"] for each in container(case)["volumeMounts"]} == set(volumes)
    assert volumes["config"]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    claim = volumes["state"].get("persistentVolumeClaim")
    assert (claim is None) == (case == "without_volume") == ("PersistentVolumeClaim" not in found)
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["Service"]["spec"]["selector"].items() <= labels.items()
    assert found["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_the_token_is_a_secret_and_the_password_of_the_database_is_not_in_its_address():
    found = {each["name"]: each for each in container("postgres")["env"]}
    assert found["FLEETGATE_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "gate-token", "key": "token"}
    assert found["PGPASSWORD"]["valueFrom"]["secretKeyRef"] == {"name": "gate-database", "key": "password"}
    assert "Secret" not in objects("postgres")
    assert objects("sqlite")["Secret"]["stringData"] == {"token": "a-token-for-the-test"}


def test_tables_are_migrated_before_the_service_starts():
    job = objects("postgres")["Job"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    (found,) = job["spec"]["template"]["spec"]["containers"]
    assert found["args"] == ["store", "migrate"]
    assert {"FLEETGATE_STORE", "PGPASSWORD"} <= {each["name"] for each in found["env"]}
    # The pods of the service and of the migration differ in their labels: the service sends no request to the latter.
    selector = objects("postgres")["Service"]["spec"]["selector"]
    assert not selector.items() <= job["spec"]["template"]["metadata"]["labels"].items()


def test_the_schema_of_the_values_knows_every_value_and_no_other():
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    optional = {"global", "nameOverride", "fullnameOverride"}
    assert set(schema["properties"]) - optional == set(values)
    for name, part in schema["properties"].items():
        if part.get("additionalProperties") is False:
            assert set(part["properties"]) == set(values[name]), name
