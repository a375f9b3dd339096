"""The workflows of GitHub Actions: valid, safe by zizmor's rules, and in agreement with the rest of the project."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()


def steps(path: Path) -> list[Any]:
    return [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]


def test_the_workflows_have_the_shape_that_their_schema_wants():
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*check, *map(str, WORKFLOWS)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_zizmor_finds_nothing_in_the_workflows():
    zizmor = Path(sys.executable).parent / "zizmor"
    if not zizmor.exists():
        pytest.skip("zizmor has no package for this system")
    check = [str(zizmor), "--offline", "--quiet", "--no-config", "--persona", "pedantic", *map(str, WORKFLOWS)]
    done = subprocess.run(check, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_to_a_commit_with_its_version(path: Path):
    used = re.findall(r"uses: (.*)$", path.read_text(), re.MULTILINE)
    assert used
    assert [line for line in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_make_is_asked_for_exists(path: Path):
    (targets,) = re.findall(r"^TARGETS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    asked = {word for step in steps(path) for word in re.findall(r"^make (\w+)", step.get("run", ""), re.MULTILINE)}
    assert asked <= set(targets.split())


def test_only_the_job_that_publishes_may_ask_for_an_identity():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    assert [name for name, job in jobs.items() if "id-token" in job["permissions"]] == ["publish"]
    assert jobs["publish"]["needs"] == ["sources", "wheels"]
    assert jobs["publish"]["environment"] == "pypi"


def test_tests_compiled_wheels_and_classifiers_name_the_same_versions_of_python():
    tested = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())["jobs"]["test"]["strategy"]
    named = [line.rpartition(" ")[2] for line in PROJECT["project"]["classifiers"] if ":: 3." in line]
    built = [f"3.{name[3:-2]}" for name in PROJECT["tool"]["cibuildwheel"]["build"]]
    assert tested["matrix"]["python"] == named == built


def test_the_chart_and_the_formula_have_the_version_of_the_last_release():
    newest = re.search(r"^## (\d+\.\d+\.\d+) ", CHANGELOG, re.MULTILINE)
    assert newest is not None
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "fleetgate" / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == newest[1]
    assert f'tag: "v{newest[1]}"' in (ROOT / "deploy" / "homebrew" / "fleetgate.rb").read_text()


def test_the_notes_of_a_release_are_its_section_of_the_changelog():
    release = ROOT / ".github" / "workflows" / "release.yml"
    (script,) = [step["run"] for step in steps(release) if "CHANGELOG" in str(step)]
    command = script.replace(">notes.md", "").replace("${GITHUB_REF_NAME#v}", "0.1.0")
    notes = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert notes.strip().startswith("The first release.")
    assert "\n## " not in notes
