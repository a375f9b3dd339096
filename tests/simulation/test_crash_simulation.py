"""Processes share one log and die or fail between any two steps; from a seed, in virtual time (rules L2, A1, Q2).

SIMULATION_SEEDS=5000 pytest tests/simulation      many more stories than usual; `make soak` has some of them
SIMULATION_SEED=17 pytest tests/simulation         one of them again
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.postgres_server import Server
from tests.simulation.stores import InMemory, InPostgres, InSqlite, Store
from tests.simulation.world import World

STEPS = 150
SOAK = int(os.environ.get("FLEETGATE_SOAK", "0"))
SEEDS = int(os.environ.get("SIMULATION_SEEDS") or 40 + 20 * SOAK)
ONLY = os.environ.get("SIMULATION_SEED")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + 10 * SEEDS)]


def tell(store: Store, seed: int) -> World:
    """One story, checked all the way."""
    with pytest.MonkeyPatch.context() as patch:
        world = World(store, seed, patch)
        try:
            for number in range(STEPS):
                world.step()
                if number % 10 == 0:
                    world.check()
            world.finish()
        except Exception as error:
            error.add_note(f"seed {seed}, step {world.number}: again with SIMULATION_SEED={seed}")
            raise
        finally:
            world.close()
        return world


def seeds(part: int) -> range:
    return range(int(ONLY), int(ONLY) + 1) if ONLY is not None else range(max(SEEDS // part, 1))


def test_L2_A1_whoever_dies_whenever_in_memory_nothing_told_is_lost_and_no_cap_is_exceeded() -> None:
    faults = commits = 0
    for seed in seeds(1):
        world = tell(InMemory(), seed)
        faults += world.faults
        commits += len(world.archive)
    assert ONLY or (faults > 10 * SEEDS and commits > 50 * SEEDS), f"the simulation was too tame: {faults}, {commits}"


def test_L2_A1_whoever_dies_whenever_on_sqlite_nothing_told_is_lost_and_no_cap_is_exceeded(tmp_path: Path) -> None:
    for seed in seeds(6):
        folder = tmp_path / str(seed)
        folder.mkdir()
        tell(InSqlite(folder), seed)


@pytest.mark.postgres
def test_L2_A1_whoever_dies_whenever_on_postgresql_nothing_told_is_lost_and_no_cap_is_exceeded(
    postgres: Server,
) -> None:
    lost = 0
    for seed in seeds(13):
        world = tell(InPostgres(postgres), seed)
        lost += world.lost_connections
    assert ONLY or lost >= SEEDS // 13, "no connection was ever lost"
