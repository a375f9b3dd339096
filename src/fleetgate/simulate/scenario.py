"""A scenario: a provider, a workload and our cap, as data (`scenarios/*.toml`)."""

from __future__ import annotations

from importlib.resources import files

import msgspec
from msgspec import Struct, field

from fleetgate.core.errors import BadRequest, NotFound
from fleetgate.simulate import random_durations


class ProviderScenario(Struct, forbid_unknown_fields=True):
    """Counts a call from its arrival until its finish and a lag, and refuses at its limit."""

    limit: list[tuple[float, int]]  # from minute -> limit
    lag_ms: tuple[int, int] = (200, 500)
    others: list[tuple[float, int]] = field(default_factory=list)  # from minute -> slots that others take
    others_every_min: float = 0  # repeats after so long; 0: never
    retry_after_s: float | None = None
    slowed: float = 1.0  # each refusal makes calls so much slower...
    slowed_min: float = 30.0  # ...for so long


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

    def service(self) -> random_durations.Table:
        if self.mix:
            return random_durations.mixed(tuple((share, int(seconds * 1000)) for share, seconds in self.mix))
        return random_durations.lognormal(int(self.median_s * 1000), self.sigma)

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
        if project.mix and abs(sum(share for share, _ in project.mix) - 1) > 1e-6:
            raise BadRequest(f"{where}: the shares of project.mix must add up to 1")
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
