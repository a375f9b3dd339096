"""The command that installs an extra, for each way in which this copy can have been installed."""

from __future__ import annotations

import json
import sys
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest

from fleetgate.config.install_hint import install_command

CLONE = "my clone"


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / CLONE).mkdir()
    (tmp_path / "env").mkdir()
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    return tmp_path / "env"


def installed(prefix: Path, installer: str, record: object) -> Distribution:
    """A dist-info folder as that tool writes it."""
    folder = prefix / "fleetgate-1.0.dist-info"
    folder.mkdir()
    (folder / "INSTALLER").write_text(f"{installer}\n")
    if record is not None:
        (folder / "direct_url.json").write_text(json.dumps(record))
    return PathDistribution(folder)


def from_clone(prefix: Path, *, editable: bool = False) -> dict[str, object]:
    url = f"file://{prefix.parent}/{CLONE.replace(' ', '%20')}"
    return {"url": url, "dir_info": {"editable": True} if editable else {}}


def command(prefix: Path, installer: str, record: object) -> str:
    text = install_command("serve", installed(prefix, installer, record), str(prefix))
    return text.replace(str(prefix.parent), "/home")


def test_pip_in_a_virtual_environment(prefix: Path) -> None:
    expected = "/home/env/bin/python -m pip install '/home/my clone[serve]'"
    assert command(prefix, "pip", from_clone(prefix)) == expected


def test_pip_in_the_active_virtual_environment(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(prefix))
    assert command(prefix, "pip", from_clone(prefix)) == "pip install '/home/my clone[serve]'"


def test_an_editable_clone_stays_editable(prefix: Path) -> None:
    expected = "/home/env/bin/python -m pip install -e '/home/my clone[serve]'"
    assert command(prefix, "pip", from_clone(prefix, editable=True)) == expected


@pytest.mark.parametrize(("editable", "option"), [(False, ""), (True, "--editable ")])
def test_pipx(prefix: Path, editable: bool, option: str) -> None:
    (prefix / "pipx_metadata.json").touch()
    record = from_clone(prefix, editable=editable)
    assert command(prefix, "pip", record) == f"pipx install --force {option}'/home/my clone[serve]'"


@pytest.mark.parametrize(("editable", "option"), [(False, ""), (True, "--editable ")])
def test_uv_tool(prefix: Path, editable: bool, option: str) -> None:
    (prefix / "uv-receipt.toml").touch()
    record = from_clone(prefix, editable=editable)
    assert command(prefix, "uv", record) == f"uv tool install --force {option}'/home/my clone[serve]'"


def test_uv_pip(prefix: Path) -> None:
    expected = "uv pip install --python /home/env/bin/python '/home/my clone[serve]'"
    assert command(prefix, "uv", from_clone(prefix)) == expected


def test_pip_of_the_system(prefix: Path) -> None:
    record = installed(prefix, "pip", from_clone(prefix))
    text = install_command("serve", record, sys.base_prefix)
    assert text == f"{sys.executable} -m pip install '{prefix.parent}/{CLONE}[serve]'"


def test_a_repository(prefix: Path) -> None:
    record = {"url": "https://example.org/fleetgate.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    expected = "/home/env/bin/python -m pip install 'fleetgate[serve] @ git+https://example.org/fleetgate.git'"
    assert command(prefix, "pip", record) == expected


@pytest.mark.parametrize(
    "record", [None, {"url": "file:///nosuch/clone", "dir_info": {}}, {"url": "file:///x.whl", "archive_info": {}}, []]
)
def test_a_source_that_is_unknown_or_gone_is_the_clone_of_the_reader(prefix: Path, record: object) -> None:
    expected = "/home/env/bin/python -m pip install '.[serve]' (in the folder of your clone)"
    assert command(prefix, "pip", record) == expected


def test_no_message_says_that_fleetgate_is_on_a_package_index() -> None:
    source = Path(__file__).parents[2] / "src"
    found = [path for path in source.rglob("*.py") if "install 'fleetgate[" in path.read_text()]
    assert not found
    assert install_command("serve").endswith(("[serve]'", "[serve]", "(in the folder of your clone)"))
