"""A scenario: a provider, a workload and our cap, as data (`scenarios/*.toml`)."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import msgspec
from msgspec import Struct, field

from fleetgate.config.document import settings_of, shown_path
from fleetgate.config.errors import BadValue, Problems
from fleetgate.config.settings import Settings
from fleetgate.config.units import parse_duration_ms
from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.simulate import random_durations
from fleetgate.simulate.provider_rates import ProviderRate

NO_LIMIT = 1_000_000  # calls at once
LARGEST = 10_000_000  # tokens of a call


class RateScenario(Struct, forbid_unknown_fields=True):
    """One rate of the provider, as `[budgets]` of the config file has it: exactly one unit, and a period."""

    calls: int = 0
    input: int = 0
    output: int = 0
    tokens: int = 0
    per: str = "1m"
    burst: int = 0

    def rate(self) -> ProviderRate:
        given = {unit: getattr(self, unit) for unit in ("calls", "input", "output", "tokens") if getattr(self, unit)}
        if len(given) != 1:
            raise BadValue("a rate of the provider has exactly one of calls, input, output and tokens")
        [(unit, amount)] = given.items()
        if amount < 0 or self.burst < 0:
            raise BadValue("the amount and the burst of a rate are 1 or more")
        return ProviderRate(unit, amount, parse_duration_ms(self.per) / 1000, self.burst)


class ProviderScenario(Struct, forbid_unknown_fields=True):
    """Counts a call from its arrival until its finish and a lag, and refuses at its limit or at a rate."""

    limit: list[tuple[float, int]] = field(default_factory=lambda: [(0, NO_LIMIT)])  # from minute -> limit
    lag_ms: tuple[int, int] = (200, 500)
    others: list[tuple[float, int]] = field(default_factory=list)  # from minute -> slots that others take
    others_every_min: float = 0  # repeats after so long; 0: never
    retry_after_s: float | None = None
    slowed: float = 1.0  # each refusal makes calls so much slower...
    slowed_min: float = 30.0  # ...for so long
    refusal_ms: tuple[int, int] = (40, 150)  # from a refusal until it is known here
    accepted: str = "soon"  # when the beginning of an answer is reported: soon, late (up to 5 s) or never
    overload_every_min: float = 0  # overloads that have nothing to do with us begin so often; 0: never
    overload_s: float = 0  # how long each takes
    rates: list[RateScenario] = field(default_factory=list)  # reported with every response


class TokenSizes(Struct, forbid_unknown_fields=True):
    """Numbers of tokens: lognormal, or fixed ones with their shares."""

    median: int = 0
    sigma: float = 0.8
    mix: list[tuple[float, int]] = field(default_factory=list)  # (share, tokens) instead of a lognormal

    def table(self) -> random_durations.Table:
        if self.mix:
            return random_durations.mixed(tuple(self.mix))
        return random_durations.lognormal(self.median, self.sigma)


class Project(Struct, forbid_unknown_fields=True):
    """Agents that think, ask, and think again."""

    agents: int
    name: str = "work"
    priority: int = 0
    requests: int = 0  # of each agent; 0: until the end
    think_s: float = 8.0
    think_first: bool = True
    median_s: float = 12.0
    sigma: float = 0.8
    mix: list[tuple[float, float]] = field(default_factory=list)  # (share, seconds) instead of a lognormal
    input: TokenSizes = field(default_factory=TokenSizes)
    output: TokenSizes = field(default_factory=TokenSizes)  # at most max_tokens
    max_tokens: int = 0  # of each call; 0: it does not say
    bytes_per_token: float = 4.0  # of the input
    busy_min: float = 0  # work comes for so long...
    idle_min: float = 0  # ...and then none for so long; 0: always

    def service(self) -> random_durations.Table:
        if self.mix:
            return random_durations.mixed(tuple((share, int(seconds * 1000)) for share, seconds in self.mix))
        return random_durations.lognormal(int(self.median_s * 1000), self.sigma)

    def service_mean_s(self) -> float:
        table = self.service()
        return sum(table) / len(table) / 1000

    def stretch(self, factor: float) -> None:
        """Make its calls, and the time between them, longer."""
        self.median_s *= factor
        self.think_s *= factor
        self.mix = [(share, seconds * factor) for share, seconds in self.mix]

    def think(self) -> random_durations.Table:
        return random_durations.exponential(int(self.think_s * 1000))


class Scenario(Struct, forbid_unknown_fields=True):
    id: str
    about: str
    cap: int
    minutes: float  # horizon; to the end of the work where it is earlier
    provider: ProviderScenario
    project: list[Project]
    seniority_s: float | None = None
    budgets: dict[str, Any] = field(default_factory=dict)  # as in the config file
    prices: dict[str, Any] = field(default_factory=dict)  # as in the config file
    tags: list[str] = field(default_factory=list)  # what kind it is (family/generator.py)

    def settings(self) -> Settings:
        """Its budgets and prices. Raises BadRequest."""
        problems: Problems = []
        settings = settings_of({"budgets": self.budgets, "prices": self.prices}, problems)
        if problems:
            path, text = problems[0]
            raise BadRequest(f"{shown_path(path)}: {text}")
        return settings


def read(text: str, where: str) -> Scenario:
    """A scenario from TOML. Raises BadRequest that says what is wrong with it."""
    try:
        scenario = msgspec.toml.decode(text, type=Scenario)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"{where}: {error}") from None
    agents = sum(project.agents for project in scenario.project)
    if scenario.cap < 1 or not 0 < scenario.minutes <= 1440 or not 1 <= agents <= 100_000:
        raise BadRequest(f"{where}: valid are a cap of 1 or more, 1 to 100000 agents, and up to 1440 minutes")
    limits = scenario.provider.limit
    if not limits or limits[0][0] != 0 or any(limit < 0 for _, limit in limits):
        raise BadRequest(f"{where}: provider.limit is a list of [minute, limit] that begins with minute 0")
    for project in scenario.project:
        for mix in (project.mix, project.input.mix, project.output.mix):
            if mix and abs(sum(share for share, _ in mix) - 1) > 1e-6:
                raise BadRequest(f"{where}: the shares of a mix must add up to 1")
        sizes = [project.input.median, project.output.median, project.max_tokens]
        sizes += [tokens for _, tokens in [*project.input.mix, *project.output.mix]]
        if min(sizes) < 0 or max(sizes) > LARGEST or not 0.1 <= project.bytes_per_token <= 100:
            raise BadRequest(f"{where}: valid are 0 to {LARGEST} tokens, and 0.1 to 100 bytes per token")
    try:
        for rate in scenario.provider.rates:
            rate.rate()
        scenario.settings()
    except (BadValue, BadRequest) as error:
        raise BadRequest(f"{where}: {error}") from None
    return scenario


def names() -> list[str]:
    """The scenarios that come with Fleetgate."""
    folder = files("fleetgate.simulate") / "scenarios"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load(name: str) -> Scenario:
    """One of those that come with Fleetgate, or a TOML file of one's own."""
    if name.endswith(".toml"):
        try:
            with open(name, encoding="utf-8") as file:
                return read(file.read(), name)
        except OSError as error:
            raise NotFound(f"cannot read {name}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise BadRequest(f"{name} is not text in UTF-8") from None
    known = {known.lower(): known for known in names()}
    found = known.get(name.lower())
    if found is None:
        raise NotFound(f"no scenario {name!r}: there are {', '.join(known.values())}, or name a .toml file")
    return read((files("fleetgate.simulate") / "scenarios" / f"{found}.toml").read_text("utf-8"), found)
