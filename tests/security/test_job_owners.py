"""A worker runs only jobs of the users it was told, and in a shared folder whose a job is must be proved."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from fleetgate.core.errors import BadRequest
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.jobs import actions, job_record, job_store, submit
from fleetgate.jobs.job_owner import Owners, must_seal, uid_of, user_name
from fleetgate.jobs.job_record import Job, JobSpec
from fleetgate.jobs.sealed_files import OwnerUnproven, Sealed, unseal
from fleetgate.jobs.worker.worker_process import Wants, WorkerProcess
from fleetgate.log import open_log

SECRET = "S3cr3tV4lueXYZ"
ME = os.geteuid()
STRANGER = 65_534

only_root = pytest.mark.skipif(ME != 0, reason="files of another user are made by root")


def gate_in(folder: Path, mode: int) -> DirectGate:
    folder.chmod(mode)
    return DirectGate(open_log(f"sqlite://{folder}"), None, str(folder))


def spec(gate: DirectGate, *argv: str, **said: object) -> JobSpec:
    return JobSpec(argv or ("true",), "/", gate.host, user=user_name(), **said)  # type: ignore[arg-type]


def submitted(gate: DirectGate, *argv: str, **said: object) -> str:
    return submit.submit(gate, [spec(gate, *argv, **said)])[0].id


@pytest.fixture
def shared(tmp_path: Path) -> DirectGate:
    return gate_in(tmp_path, 0o2770)


def owners(gate: DirectGate, *names: str) -> Owners:
    return Owners(names, gate.folder, shared_log=False)


def sealed_path(gate: DirectGate, ident: str) -> Path:
    return Path(gate.folder, "jobs", f"{ident}.job")


def unsealed(gate: DirectGate, ident: str, *names: str) -> JobSpec:
    job = job_store.find(gate.log, ident)
    assert job is not None
    return unseal(gate.folder, ident, job, owners(gate, *names))


def test_in_a_shared_folder_the_row_has_no_secret_and_the_file_is_its_owners_alone(shared: DirectGate):
    ident = submitted(shared, "agent", "--api-key", SECRET, env={"PLAIN": SECRET})
    row = shared.log.side_value(job_record.JOBS, ident)
    assert row is not None
    assert SECRET.encode() not in row
    path = sealed_path(shared, ident)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert unsealed(shared, ident).argv == ("agent", "--api-key", SECRET)
    assert unsealed(shared, ident).env == {"PLAIN": SECRET}


def test_in_a_private_folder_the_row_is_enough_and_only_its_owner_can_read_the_store(tmp_path: Path):
    gate = gate_in(tmp_path, 0o700)
    ident = submitted(gate, "agent", "--api-key", SECRET)
    gate.maintain()
    assert not sealed_path(gate, ident).exists()
    assert unsealed(gate, ident).argv[-1] == SECRET
    others = [path for path in Path(gate.folder).rglob("*") if path.is_file() and path.stat().st_mode & 0o077]
    assert others == []


def test_a_row_that_a_member_wrote_by_hand_is_not_run(shared: DirectGate):
    job = Job(spec(shared, "evil"), "queued", shared.now(), 0)
    asked = job_record.acquire_command("evilevil01", job)
    shared.decide([asked], side=[job_record.write("evilevil01", job)])
    with pytest.raises(OwnerUnproven, match="cannot be proved"):
        unsealed(shared, "evilevil01")


def become_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: path.chmod(0o620),
        lambda path: path.chmod(0o602),
        lambda path: os.link(path, f"{path}.2"),
        lambda path: (path.rename(f"{path}.2"), path.symlink_to(f"{path}.2")),
        become_pipe,
        lambda path: path.write_bytes(b"{}"),
        lambda path: path.unlink(),
        pytest.param(lambda path: os.chown(path, STRANGER, -1), marks=only_root),
    ],
    ids=["group", "world", "two names", "symbolic link", "pipe", "no specification", "gone", "another owner"],
)
def test_a_file_that_another_could_have_made_or_changed_is_not_run(shared: DirectGate, harm):
    ident = submitted(shared)
    harm(sealed_path(shared, ident))
    with pytest.raises(OwnerUnproven):
        unsealed(shared, ident)


def test_the_file_of_another_job_is_not_run_in_its_place(shared: DirectGate):
    one, other = submitted(shared, "one"), submitted(shared, "other")
    sealed_path(shared, one).rename(sealed_path(shared, other))
    with pytest.raises(OwnerUnproven, match="another job"):
        unsealed(shared, other)


def test_a_changed_row_changes_nothing_of_what_is_run(shared: DirectGate):
    ident = submitted(shared, "mine")
    job = job_store.find(shared.log, ident)
    assert job is not None
    job.spec = msgspec.structs.replace(job.spec, argv=("evil",), env={"LD_PRELOAD": "/evil"}, cwd="/evil")
    shared.decide([], side=[job_record.write(ident, job)])
    found = unsealed(shared, ident)
    assert (found.argv, found.env, found.cwd) == (("mine",), {}, "/")


@only_root
def test_a_worker_of_another_user_does_not_take_it_and_everyone_is_told_whose_worker_would():
    with TemporaryDirectory() as place:  # one that another user can enter
        os.chown(place, 0, STRANGER)
        look_with_workers_of_both(gate_in(Path(place), 0o2770))


def look_with_workers_of_both(shared: DirectGate) -> None:
    ident = submitted(shared)
    reason = job_store.view(shared, ident).reason
    assert reason is not None
    assert "only a worker of root may run it" in reason.text
    assert leases_taken_as(shared.folder, STRANGER) == 0
    assert leases_taken_as(shared.folder, 0) == 1


@only_root
def test_a_worker_that_is_told_a_name_takes_that_users_jobs_and_not_its_own(tmp_path: Path):
    gate = gate_in(tmp_path, 0o2770)
    submitted(gate)
    assert leases_taken_as(gate.folder, 0, users=(user_name(STRANGER),)) == 0
    assert leases_taken_as(gate.folder, 0, users=(user_name(STRANGER), "root")) == 1


def leases_taken_as(folder: str, uid: int, users: tuple[str, ...] = ()) -> int:
    """How many leases one hand of a user has after it has looked once; in a process of its own."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            gate = DirectGate(open_log(f"sqlite://{folder}"), None, folder)
            hand = WorkerProcess(gate, Wants(users=users), -1, lambda text: None)
            hand._get_ready = lambda: None  # type: ignore[method-assign]
            hand._rest = lambda longest_s: None  # type: ignore[method-assign]
            code = 0 if hand.next_lease() is None else 1
            hand.close()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_rows_of_an_older_version_are_the_owners_of_a_private_folder(tmp_path: Path):
    gate = gate_in(tmp_path, 0o700)
    assert owners(gate).may_run("")
    assert owners(gate).vouch_for_rows()
    if ME == 0:
        os.chown(tmp_path, STRANGER, -1)
        assert not owners(gate).may_run("")
        assert not owners(gate).vouch_for_rows()
        assert owners(gate, user_name(STRANGER)).vouch_for_rows()
        assert must_seal(gate.folder, shared_log=False)


def test_on_postgresql_the_name_of_the_user_decides(tmp_path: Path):
    told = Owners((), str(tmp_path), shared_log=True)
    assert told.may_run(user_name())
    assert told.may_run("")
    assert not told.may_run("alice")
    assert told.vouch_for_rows()
    assert not must_seal(str(tmp_path), shared_log=True)


def test_a_user_that_does_not_exist_is_said_so():
    with pytest.raises(BadRequest, match="no such user"):
        uid_of("nobody-of-that-name")
    assert uid_of(user_name()) == ME


def test_what_was_not_submitted_leaves_no_file(shared: DirectGate):
    submitted(shared, key="once")
    again = submit.submit(shared, [spec(shared, key="once")])
    assert not again[0].new
    assert len(list(Path(shared.folder, "jobs").glob("*.job"))) == 1


def test_a_job_that_is_forgotten_takes_its_file_along(shared: DirectGate):
    ident = submitted(shared)
    actions.cancel(shared, ident, "me")
    actions.clean(shared, 1 << 60)
    assert not sealed_path(shared, ident).exists()


def test_the_model_of_a_sealed_job_is_one_that_it_was_submitted_with(shared: DirectGate):
    from fleetgate.jobs.worker.attempt import Attempt

    ident = submitted(shared, "sh", "-c", "echo {model}", models=("a/b",))
    hand = WorkerProcess(shared, Wants(), -1, lambda text: None)
    hand._get_ready = lambda: None  # type: ignore[method-assign]
    lease = hand.next_lease()
    job = job_store.find(shared.log, ident)
    assert lease is not None
    assert job is not None
    lease = msgspec.structs.replace(lease, model="a/$(evil)")
    Attempt(shared, lease, job, lambda text: None).run(None, lambda: None)
    view = job_store.view(shared, ident)
    assert view.state == "failed"
    assert "was not submitted with the model" in view.job.why
    hand.close()


def test_what_is_sealed_names_its_job(shared: DirectGate):
    ident = submitted(shared)
    found = msgspec.json.decode(sealed_path(shared, ident).read_bytes(), type=Sealed)
    assert found.id == ident
