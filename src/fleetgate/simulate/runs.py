"""Many runs: scenarios × policies × seeds, on several processors where there are any. The order does not matter."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import active_children

from msgspec import Struct

from fleetgate.simulate.policies import plan
from fleetgate.simulate.result import SimulationResult
from fleetgate.simulate.scenario import Scenario
from fleetgate.simulate.world import World


class SimulationRun(Struct, frozen=True):
    scenario: Scenario
    policy: str
    seed: int
    series: bool = False  # keep what a plot needs
    refusals: str | None = None  # what a refused call costs, where the limit is learned; None: what the policy says


def one(run: SimulationRun, progress: Callable[[float], None] | None = None) -> SimulationResult:
    world = World(run.scenario, plan(run.policy, run.refusals), run.seed)
    collects = gc.isenabled()
    gc.disable()  # a run makes a few hundred thousand objects, keeps some of them, and leaves no rings behind
    try:
        world.run(progress)
    finally:
        if collects:
            gc.enable()
    return world.result(run.policy, run.seed, series=run.series)


def every(
    runs: list[SimulationRun], jobs: int, progress: Callable[[float], None] | None = None
) -> Iterator[SimulationResult]:
    """The results in the order of the runs. `progress` is told which part of all is done."""
    tell = progress or (lambda _: None)
    if jobs <= 1 or len(runs) == 1:
        for number, run in enumerate(runs):
            yield one(run, lambda part, done=number: tell((done + part) / len(runs)))  # type: ignore[misc]
        return
    os.environ["PYTHONSAFEPATH"] = "1"  # where processes are not forked: they import nothing of the current folder
    pool = ProcessPoolExecutor(min(jobs, len(runs)), initializer=_leave_ctrl_c_to_us)
    over = False
    try:
        for number, result in enumerate(pool.map(one, runs), 1):
            tell(number / len(runs))
            yield result
        over = True
    finally:
        if not over:  # interrupted, for example: what was begun would go on to its end
            for worker in active_children():
                worker.terminate()
        pool.shutdown(wait=over, cancel_futures=True)


def _leave_ctrl_c_to_us() -> None:
    """A worker would take it for the end of one run, and go on with the next; compiled, it would not even notice."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
