"""In a state folder that several users can write to, nothing that another member left there is acted on."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from fleetgate.api.security.tokens import NoToken, find_token, make_token, token_path
from fleetgate.gate.liveness import process_identity
from fleetgate.gate.node import discovery
from fleetgate.gate.serving.service_address import BadAddress, ServiceAddress, address_path, read_address, write_address
from fleetgate.jobs import output_files
from fleetgate.log.store_files import make_file, make_inner_folder

STRANGER = 65_534
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="files of another user are made by root")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    tmp_path.chmod(0o2770)
    return str(tmp_path)


def served(folder: str) -> None:
    write_address(folder, ServiceAddress("http://127.0.0.1:1", "127.0.0.1", 1, process_identity.this_process(), "now"))


def test_the_token_is_its_owners_alone_and_is_found_again(folder: str):
    token = make_token(folder)
    assert stat.S_IMODE(Path(token_path(folder)).stat().st_mode) == 0o600
    assert find_token(folder) == token
    assert [path.name for path in Path(folder).iterdir()] == ["token"]


def become_link(path: Path) -> None:
    path.rename(f"{path}.2")
    path.symlink_to(f"{path}.2")


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: path.chmod(0o640),
        lambda path: path.chmod(0o602),
        become_link,
        lambda path: os.link(path, f"{path}.2"),
        pytest.param(lambda path: os.chown(path, STRANGER, -1), marks=only_root),
    ],
    ids=["group", "world", "symbolic link", "two names", "another owner"],
)
def test_a_token_that_another_could_have_made_or_read_is_refused_with_a_sentence(folder: str, harm):
    make_token(folder)
    harm(Path(token_path(folder)))
    with pytest.raises(NoToken, match=r"token .* (is not used|cannot be read)"):
        find_token(folder)


def test_a_member_who_left_a_link_in_the_way_gets_no_token(folder: str, tmp_path: Path):
    Path(token_path(folder)).symlink_to(tmp_path / "stolen")
    make_token(folder)
    assert not (tmp_path / "stolen").exists()
    assert find_token(folder)


def test_the_address_of_the_service_can_be_changed_by_its_owner_only(folder: str):
    served(folder)
    path = Path(address_path(folder))
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    found = read_address(folder)
    assert found is not None
    assert found.port == 1


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: path.chmod(0o660),
        lambda path: path.chmod(0o642),
        lambda path: os.link(path, f"{path}.2"),
        pytest.param(lambda path: os.chown(path, STRANGER, -1), marks=only_root),
    ],
    ids=["group", "world", "two names", "another owner"],
)
def test_no_token_and_no_key_is_sent_to_an_address_that_another_could_have_written(folder: str, harm):
    served(folder)
    harm(Path(address_path(folder)))
    with pytest.raises(BadAddress, match="is not used"):
        read_address(folder)


@only_root
def test_the_service_of_the_folders_owner_is_trusted(folder: str):
    served(folder)
    os.chown(folder, STRANGER, -1)
    os.chown(address_path(folder), STRANGER, -1)
    assert read_address(folder) is not None


@only_root
def test_a_node_of_another_member_is_not_asked(folder: str):
    path = f"{folder}/run/x.node"
    Path(path).parent.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listen_as(listener, path, STRANGER)
        assert discovery.connect(path) is None
    Path(path).unlink()
    os.chown(folder, STRANGER, -1)
    with socket.socket(socket.AF_UNIX) as listener:
        listen_as(listener, path, STRANGER)
        found = discovery.connect(path)
        assert found is not None  # the owner of the folder
        found.close()


def listen_as(listener: socket.socket, path: str, uid: int) -> None:
    """The kernel tells of a listening socket who listened."""
    os.seteuid(0)
    listener.bind(path)
    os.seteuid(uid)
    try:
        listener.listen()
    finally:
        os.seteuid(0)


def test_files_of_ours_are_not_written_through_links_that_a_member_left(folder: str, tmp_path: Path):
    mine = tmp_path / "mine"
    mine.write_text("")
    Path(folder, "access.log").symlink_to(mine)
    with pytest.raises(OSError, match=r"access\.log"):
        make_file(f"{folder}/access.log", exclusive=False)
    os.link(mine, f"{folder}/node.log")
    with pytest.raises(OSError, match=r"node\.log"):
        make_file(f"{folder}/node.log", exclusive=False)
    Path(folder, "jobs").symlink_to(tmp_path)
    with pytest.raises(OSError, match="jobs"):
        make_inner_folder(f"{folder}/jobs")


def test_the_output_of_a_job_is_not_read_through_a_link(folder: str, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("1700000000000 osecret\n")
    Path(folder, "jobs", "job").mkdir(parents=True)
    Path(folder, "jobs", "job", "output").symlink_to(secret)
    assert output_files.page(folder, "job", "").pieces == []


def test_in_a_private_folder_links_are_its_owners_own(tmp_path: Path):
    """A token that a secret store mounts is a link, and a backup may be made of hard links."""
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    make_token(str(folder))
    become_link(folder / "token")
    os.link(folder / "token.2", tmp_path / "backup")
    assert find_token(str(folder)) == (tmp_path / "backup").read_text().strip()
    served(str(folder))
    os.link(address_path(str(folder)), tmp_path / "backup.json")
    assert read_address(str(folder)) is not None
    (folder / "token.2").chmod(0o644)
    with pytest.raises(NoToken, match="chmod 600"):
        find_token(str(folder))
