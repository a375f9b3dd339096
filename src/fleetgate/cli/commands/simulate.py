"""`fleetgate simulate`: what a cap or policy would do to a fleet, in virtual time, before it is tried."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Literal

import click
from click.core import ParameterSource
from msgspec import Struct

from fleetgate.cli import exit_codes
from fleetgate.cli.click_helpers import json_option, kind_option, tell
from fleetgate.cli.read_only_gate import say_json
from fleetgate.cli.simulation.from_history import WhatIf, play_history
from fleetgate.config.errors import BadValue
from fleetgate.config.value_types import read_cap_text, read_refusals
from fleetgate.core.compiled import COMPILED
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import shown
from fleetgate.simulate import plot as plots
from fleetgate.simulate.family import pareto, report
from fleetgate.simulate.family.generator import TAGS, family
from fleetgate.simulate.policies import DEFAULT, plan, plans
from fleetgate.simulate.result import mean
from fleetgate.simulate.runs import SimulationRun, every
from fleetgate.simulate.scenario import Scenario, load, names
from fleetgate.simulate.table import aligned, compared, waits


@click.command(short_help="Simulate a fleet under a cap or policy.")
@click.argument("scenarios", metavar="SCENARIO...", nargs=-1)
@click.option("--policy", "policies", metavar="NAME,...", multiple=True, help=f"Default: {','.join(DEFAULT)}.")
@click.option(
    "--seeds", metavar="N", type=click.IntRange(1, 1000), default=1, show_default=True, help="Number of runs of each."
)
@click.option("--first-seed", metavar="N", type=int, default=1, show_default=True, help="The seed of the first run.")
@click.option(
    "--random", "random", metavar="N", type=click.IntRange(1, 10_000), help="Play N random scenarios instead."
)
@click.option("--seed", metavar="S", type=int, default=1, show_default=True, help="The first random scenario.")
@click.option("--class", "tag", metavar="CLASS", default="", help="Only random scenarios of this class (`--list`).")
@click.option("--cap", "caps", metavar="N", multiple=True, help="Replace the scenario's cap; of the history: POOL=N.")
@click.option("--refusals", metavar="PRICE", help="What a refused call costs, for adapt: cheap, normal or expensive.")
@click.option("--from-history", is_flag=True, help="Replay your own log under another cap or policy instead.")
@click.option("--since", metavar="TIME", default="7d", show_default=True, help="Of the history: since when.")
@click.option("--pool", metavar="POOL", help="Of the history: show only this pool.")
@kind_option
@click.option("--jobs", metavar="N", type=click.IntRange(1, 256), help="Parallel runs (default: number of processors).")
@click.option(
    "--plot",
    metavar="FILE",
    help="Draw utilisation, limit and 429s over time, or with --random against each other, as SVG.",
)
@click.option("--list", "listed", is_flag=True, help="List scenarios and policies.")
@json_option
@click.pass_context
def command(
    context: click.Context,
    scenarios: tuple[str, ...],
    policies: tuple[str, ...],
    seeds: int,
    first_seed: int,
    random: int | None,
    seed: int,
    tag: str,
    caps: tuple[str, ...],
    refusals: str | None,
    from_history: bool,
    since: str,
    pool: str | None,
    kind: str | None,
    jobs: int | None,
    plot: str | None,
    listed: bool,
    as_json: bool,
) -> int:
    """Simulate fleets, providers and policies in virtual time, and compare utilisation and number of 429s.

    SCENARIO is built in (`--list`), or a TOML file of the same format. The engine is the real one. The same seed gives
    the same result on every machine.

    \b
    fleetgate simulate C1
    fleetgate simulate A2 C1 E1 --policy step,adapt,oracle --seeds 5
    fleetgate simulate my-fleet.toml --cap 12 --plot fleet.svg
    fleetgate simulate --random 50 --seed 1 --policy adapt,aimd
    fleetgate simulate --from-history --since 7d --cap umans=6

    With --from-history the requests of your own log arrive again, and the engine decides about them under the caps or
    the policy that you name. It shows what would have been different, and what is not known.

    Exit codes: 0; 64 when something is invalid.
    """
    if listed:
        return _list(as_json)
    price = _price(refusals)
    _check_options(context)
    if from_history:
        return play_history(WhatIf(since, caps, policies, pool, kind, price), as_json)
    cap = _cap(caps)
    wanted = [name for given in policies or (",".join(DEFAULT),) for name in given.split(",") if name]
    if not wanted:
        raise BadRequest(f"--policy: which one? There are {', '.join(plans())}")
    if price is not None and not any(plan(name).on_429 == "adapt" for name in wanted):
        raise BadRequest(f"--refusals: of the policies {', '.join(wanted)} none learns a limit; adapt does")
    for name in wanted:
        plan(name)
    workers = jobs or os.cpu_count() or 1
    if random is not None:
        return _play_random(family(seed, random, tag), seed, wanted, price, workers, as_json, plot)
    if not scenarios:
        raise BadRequest(
            f"which scenario? There are {', '.join(names())} (`fleetgate simulate --list`), or a .toml file"
        )
    chosen = [_capped(load(name), cap) for name in scenarios]
    if plot is not None:
        _write(plot, "", "a")  # fail before the work, and leave what is there until the work is done
    runs = [
        SimulationRun(scenario, policy, seed, plot is not None and seed == first_seed, price)
        for scenario in chosen
        for policy in wanted
        for seed in range(first_seed, first_seed + seeds)
    ]
    began = perf_counter()
    results = list(every(runs, workers, None if as_json else _progress()))
    took_s = perf_counter() - began
    means = [mean(results[at : at + seeds]) for at in range(0, len(results), seeds)]
    if as_json:
        say_json({"results": [_fields(each) for each in means]})
    else:
        tell(f"utilisation % / number of 429s, mean of {seeds} seed{'s' if seeds > 1 else ''} from {first_seed} on")
        _table(aligned(*compared(means)))
        tell("")
        _table(aligned(*waits(means)))
        _print_speed(sum(each.requests for each in results), took_s)
    if plot is not None:
        panels = [(run.scenario, result) for run, result in zip(runs, results, strict=True) if run.series]
        _write(plot, plots.svg(panels))
        print(f"fleetgate: drawn to {plot}", file=sys.stderr)
    return exit_codes.OK


# What is about the history, about random scenarios, and about those that are named.
_OPTIONS = {
    "--from-history": ("since", "pool", "kind", "caps"),
    "--random": ("random", "seed", "tag", "jobs", "plot"),
    "SCENARIO": ("scenarios", "seeds", "first_seed", "caps", "jobs", "plot"),
}
_OF_ALL = ("policies", "refusals", "from_history", "as_json", "listed")
_WHY = {"--from-history": "your log is the scenario", "--random": "it draws its own scenarios"}


def _check_options(context: click.Context) -> None:
    """Options that would be ignored are refused."""
    given = [
        each
        for each in context.command.params
        if each.name and context.params.get(each.name) and not _is_default(context, each.name)
    ]
    names = [each.name for each in given]
    mode = "--from-history" if "from_history" in names else "--random" if "random" in names else "SCENARIO"
    for each in given:
        if each.name in (*_OPTIONS[mode], *_OF_ALL):
            continue
        option = "SCENARIO" if each.name == "scenarios" else each.opts[0]
        if mode in _WHY:
            raise BadRequest(f"{mode} goes with no {option}: {_WHY[mode]}")
        needed = next(other for other, its in _OPTIONS.items() if each.name in its)
        raise BadRequest(f"{option} needs {needed}")


def _is_default(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.DEFAULT


def _play_random(
    chosen: list[Scenario],
    seed: int,
    wanted: list[str],
    price: str | None,
    jobs: int,
    as_json: bool,
    plot: str | None,
) -> int:
    """Play random scenarios, each with its own seed, and compare with the oracle, class by class."""
    if plot is not None:
        _write(plot, "", "a")  # fail before the work, and leave what is there until the work is done
    policies = list(dict.fromkeys([*wanted, report.ORACLE]))
    runs = [
        SimulationRun(scenario, policy, int(scenario.id.removeprefix("random-")), refusals=price)
        for scenario in chosen
        for policy in policies
    ]
    began = perf_counter()
    results = list(every(runs, jobs, None if as_json else _progress()))
    found = report.scores(chosen, results)
    classes = report.by_class(found)
    if plot is not None:
        _write(plot, pareto.svg(classes))
        print(f"fleetgate: drawn to {plot}", file=sys.stderr)
    if as_json:
        say_json({"scenarios": [_fields(each) for each in found], "classes": [_fields(each) for each in classes]})
        return exit_codes.OK
    tell(f"{len(chosen)} random scenarios from seed {seed} on: % of the oracle's utilisation (worst) / 429s a change")
    _table(aligned(*report.table(classes)))
    _print_speed(sum(each.requests for each in results), perf_counter() - began)
    return exit_codes.OK


def _fields(each: Struct) -> dict[str, object]:
    return {name: getattr(each, name) for name in each.__struct_fields__}


def _print_speed(requests: int, took_s: float) -> None:
    """Print the speed of a long simulation; a short one would measure the start-up time."""
    if took_s < 2:
        return
    how = "" if COMPILED else "; a compiled core is twice as fast (installing it compiles it)"
    rate = f"{requests / took_s:,.0f} per second{how}"
    print(f"fleetgate: {requests:,} requests simulated in {took_s:.1f}s, {rate}", file=sys.stderr)


def _table(text: str) -> None:
    for line in text.splitlines():
        tell(line)


def _cap(given: tuple[str, ...]) -> int | None:
    """The cap of all scenarios."""
    if not given:
        return None
    try:
        return read_cap_text(given[-1])
    except BadValue as error:
        raise BadRequest(f"--cap {shown(given[-1])}: {error}") from error


def _price(text: str | None) -> str | None:
    """What a refused call costs."""
    try:
        return None if text is None else read_refusals(text)
    except BadValue as error:
        raise BadRequest(f"--refusals: {error}") from error


def _capped(scenario: Scenario, cap: int | None) -> Scenario:
    if cap is not None:
        scenario.cap = cap
    return scenario


def _list(as_json: bool) -> int:
    found = [load(name) for name in names()]
    if as_json:
        known = {name: each.about for name, each in plans().items()}
        say_json({"scenarios": {each.id: each.about for each in found}, "policies": known, "classes": TAGS})
        return exit_codes.OK
    _table(aligned(["SCENARIO", "CAP", "MINUTES", ""], [[s.id, str(s.cap), f"{s.minutes:g}", s.about] for s in found]))
    tell("")
    _table(aligned(["POLICY", ""], [[name, each.about] for name, each in plans().items()]))
    tell("")
    _table(aligned(["CLASS", "of --random"], [[name, about] for name, about in TAGS.items()]))
    return exit_codes.OK


def _write(path: str, text: str, mode: Literal["w", "a"] = "w") -> None:
    try:
        with open(path, mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise BadRequest(f"cannot write {path}: {error.strerror}") from None


def _progress() -> Callable[[float], None] | None:
    """A bar on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        return None

    def show(part: float) -> None:
        done = int(part * 40)
        text = f"\r[{'#' * done}{'.' * (40 - done)}] {part:4.0%}" if part < 1 else f"\r{' ' * 48}\r"
        sys.stderr.write(text)
        sys.stderr.flush()

    return show
