"""A library's requests and credentials that change (rule B3): no request is refused for a login that is over."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import fleetgate
from fleetgate.config.settings import Provider, Settings
from fleetgate.core import commands as cmd
from fleetgate.core.entities import Spec
from fleetgate.gate.providers.credentials import Credentials
from fleetgate.gate.replica.replica import Replica
from fleetgate.log.sqlite.log import SqliteLog
from tests.library.helpers import CODER, in_queue

CONFIG = {"providers": {"umans": {"key_env": "UMANS_KEY"}}}


def refuse(folder: Path) -> None:
    """Another process, whose agent's login is refused."""
    log = SqliteLog(str(folder))
    replica = Replica(log, "other")
    used = Credentials(Settings(providers={"umans": Provider(key_env="UMANS_KEY")}), replica).used_for(CODER)
    replica.decide([cmd.Acquire("refused", Spec((CODER,)), "other")])
    replica.decide([cmd.Release("refused", "auth", credential=used.digest)])
    assert list(replica.state.backoffs) == ["umans"]
    log.close()


@pytest.mark.parametrize("wait", [True, False])
def test_b3_a_request_is_admitted_once_the_key_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: bool
) -> None:
    async def main() -> None:
        monkeypatch.setenv("UMANS_KEY", "one")
        refuse(tmp_path / "s")
        async with fleetgate.open_gate(f"sqlite://{tmp_path / 's'}", CONFIG) as gate:
            assert isinstance(await gate.try_lease(CODER), fleetgate.Deferred)
            with pytest.raises(fleetgate.NotAdmitted):
                await gate.lease(CODER).__aenter__()
            monkeypatch.setenv("UMANS_KEY", "two")
            if wait:
                async with gate.lease(CODER):
                    pass
            else:
                assert not isinstance(await gate.try_lease(CODER), fleetgate.Deferred)

    asyncio.run(main())


def test_b3_who_waits_enters_by_itself_once_the_key_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        monkeypatch.setenv("UMANS_KEY", "one")
        refuse(tmp_path / "s")
        log = SqliteLog(str(tmp_path / "s"))
        Replica(log, "other").decide([cmd.BackOff("other/model", "overloaded", 7_200_000)])
        log.close()
        async with fleetgate.open_gate(f"sqlite://{tmp_path / 's'}", CONFIG) as gate:

            async def work() -> str:
                async with gate.lease([CODER, "other/model"]) as lease:
                    return lease.model

            waiting = asyncio.create_task(work())
            await in_queue(gate, 1)
            monkeypatch.setenv("UMANS_KEY", "two")
            assert await asyncio.wait_for(waiting, 20) == CODER

    asyncio.run(main())


def test_b3_a_login_that_a_program_says_was_refused_is_over_with_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        monkeypatch.setenv("UMANS_KEY", "one")
        async with fleetgate.open_gate(f"sqlite://{tmp_path / 's'}", CONFIG) as gate:
            lease = await gate.try_lease(CODER)
            assert not isinstance(lease, fleetgate.Deferred)
            await lease.release("auth")
            assert isinstance(await gate.try_lease(CODER), fleetgate.Deferred)
            monkeypatch.setenv("UMANS_KEY", "two")
            assert not isinstance(await gate.try_lease(CODER), fleetgate.Deferred)

    asyncio.run(main())


def test_b4_a_candidate_that_is_known_to_have_no_credentials_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        monkeypatch.delenv("UMANS_KEY", raising=False)
        async with fleetgate.open_gate(f"sqlite://{tmp_path / 's'}", CONFIG) as gate:
            async with gate.lease([CODER, "other/model"]) as lease:
                assert lease.model == "other/model"
            async with gate.lease(CODER) as lease:
                assert lease.model == CODER, "no other model could do its work"
            refused = await gate.try_lease([CODER, "umans/other"])
            assert isinstance(refused, fleetgate.Deferred)
            assert (refused.reason.code, "UMANS_KEY" in refused.reason.text) == ("no_credentials", True)
            with pytest.raises(fleetgate.NotAdmitted, match="no candidate has credentials"):
                await gate.lease([CODER, "umans/other"]).__aenter__()
            monkeypatch.setenv("UMANS_KEY", "one")
            async with gate.lease([CODER, "other/model"]) as lease:
                assert lease.model == CODER

    asyncio.run(main())
