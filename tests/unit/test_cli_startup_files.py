"""Blocks in the start-up files of shells: added once, and removed without a trace."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetgate.cli.shims.startup_files import (
    Block,
    CannotChange,
    add_block,
    path_block,
    remove_block,
    startup_files,
    without_block,
)

SHIMS, OTHER = Block("shims", ("a", "b")), Block("completion", ("c",))


@pytest.mark.parametrize("before", [b"", b"x", b"x\n", b"x\n\n", b"\xff\r\nx", b"# >>> fleetgate shims >>>\n"])
@pytest.mark.parametrize("first", ["shims", "completion"])
def test_a_file_is_the_same_byte_for_byte_after_its_blocks_are_removed(tmp_path: Path, before: bytes, first: str):
    file = tmp_path / "rc"
    file.write_bytes(before)
    file.chmod(0o640)
    for block in (SHIMS, OTHER, SHIMS):
        add_block(str(file), block)
    again = file.read_bytes()
    assert not add_block(str(file), OTHER)
    assert file.read_bytes() == again
    second = "completion" if first == "shims" else "shims"
    assert remove_block(str(file), first)
    assert remove_block(str(file), second)
    assert not remove_block(str(file), second)
    assert file.read_bytes() == before
    assert file.stat().st_mode & 0o777 == 0o640


@settings(max_examples=50)
@given(st.text("ab\n# ", max_size=20), st.text("ab\n# ", max_size=20))
def test_what_a_user_writes_around_a_block_stays(before: str, behind: str):
    separator = "\n" if before else ""
    left = without_block(f"{before}{separator}{SHIMS.text}{behind}", "shims")
    assert left == before + behind or left == f"{before}\n{behind}"
    assert [line for line in left.split("\n") if line] == [line for line in f"{before}\n{behind}".split("\n") if line]


def test_a_file_that_was_made_for_a_block_goes_with_it(tmp_path: Path):
    file = tmp_path / "new/folder/rc"
    assert add_block(str(file), SHIMS)
    assert remove_block(str(file), "shims")
    assert not file.exists()


def test_a_changed_block_replaces_the_older_one(tmp_path: Path):
    file = tmp_path / "rc"
    file.write_text("x\n")
    add_block(str(file), SHIMS)
    newer = Block("shims", ("z",))
    assert add_block(str(file), newer)
    assert file.read_text() == f"x\n\n{newer.text}"


def test_a_link_stays_a_link_and_an_unsafe_file_is_left_alone(tmp_path: Path):
    real, link = tmp_path / "dotfiles", tmp_path / "rc"
    real.write_text("x\n")
    link.symlink_to(real)
    add_block(str(link), SHIMS)
    assert link.is_symlink()
    assert SHIMS.text in real.read_text()
    real.chmod(0o666)
    before = real.read_text()
    with pytest.raises(CannotChange, match="another user could change it"):
        add_block(str(link), OTHER)
    assert real.read_text() == before


def test_bash_has_one_block_if_its_login_file_reads_bashrc(tmp_path: Path):
    home = {"HOME": str(tmp_path)}
    (tmp_path / ".profile").write_text(". ~/.bashrc\n")
    assert startup_files("bash", home) == [f"{tmp_path}/.bashrc"]
    (tmp_path / ".bash_profile").write_text("export X=1\n")
    assert startup_files("bash", home) == [f"{tmp_path}/.bashrc", f"{tmp_path}/.bash_profile"]
    assert startup_files("zsh", {**home, "ZDOTDIR": "/z"}) == ["/z/.zshrc"]
    assert startup_files("fish", {**home, "XDG_CONFIG_HOME": "relative"}) == [f"{tmp_path}/.config/fish/config.fish"]


# Those that are not installed here are not tried.
@pytest.mark.parametrize("shell", [name for name in ("bash", "dash", "zsh", "fish") if shutil.which(name)])
def test_the_shims_come_first_on_path_once_and_only_if_they_exist(tmp_path: Path, shell: str):
    folder = tmp_path / "it's a $HOME folder"
    rc = tmp_path / "rc"
    rc.write_text(path_block("fish" if shell == "fish" else "bash", str(folder)).text)

    def path(before: str) -> str:
        script = f". '{rc}'; . '{rc}'; printenv PATH"
        env = {**os.environ, "PATH": before}
        argv = [shutil.which(shell) or shell, "-c", script]
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout.strip()

    assert path("/usr/bin:/bin") == "/usr/bin:/bin"
    folder.mkdir()
    assert path("/usr/bin:/bin") == f"{folder}:/usr/bin:/bin"
    assert path(f"/usr/bin:{folder}:/bin").startswith(f"{folder}:/usr/bin:")
