"""One run: agents think, ask the engine, call the provider, and think again, in virtual time.

Every policy meets the same work for a seed: how long each agent thinks and its calls take is drawn from a stream of
its own. The engine is the one of production, driven by commands as the library does: `Acquire`, `Active` when the
answer to a call begins and the engine wants to know, `ObserveRates` when its headers report rates, `Release` with its
usage, `Tick` at its deadlines, and `SetRule` for baselines that move the cap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fleetgate.core import commands as cmd
from fleetgate.core.commands import Acquire, Release
from fleetgate.core.engine import Engine
from fleetgate.core.entities import Spec
from fleetgate.core.events import Granted, Queued
from fleetgate.core.pools.pool import Pool
from fleetgate.core.prices import Price
from fleetgate.core.queue.order import PRIORITY_MS
from fleetgate.core.usage import RESPONSE, Size, Usage
from fleetgate.gate.prices.lookup import price_of
from fleetgate.simulate import random_durations
from fleetgate.simulate.agenda import Agenda
from fleetgate.simulate.agent import Group, SimulatedAgent, idle_ms
from fleetgate.simulate.policies import Plan
from fleetgate.simulate.provider import HEADERS_MS, MINUTE, NETWORK_MS, SimulatedProvider
from fleetgate.simulate.random_durations import BITS
from fleetgate.simulate.result import SimulationResult
from fleetgate.simulate.rivals import CallSample, rival
from fleetgate.simulate.scenario import Scenario

START: Final = 10_000_000  # log time at the beginning; far enough from 0 for any `since`
ME: Final = "sim"
MODEL: Final = "sim/model"
POOL: Final = "requests sim"
_NETWORK: Final = random_durations.uniform(*NETWORK_MS)
_HEADERS: Final = {when: random_durations.uniform(*span) for when, span in HEADERS_MS.items()}
NOTHING_USED: Final = Usage(source=RESPONSE)
_RETRY_MS, _MOST_RETRY_MS = 1_000, 8_000  # client libraries: doubling, jittered


class World:
    def __init__(self, scenario: Scenario, plan: Plan, seed: int) -> None:
        self.scenario = scenario
        self.plan = plan
        self.end = START + int(scenario.minutes * MINUTE)
        retry_after_s = scenario.provider.retry_after_s
        self.hint_ms = None if retry_after_s is None else int(retry_after_s * 1000)
        self.retry_after_ms = plan.pause_ms if self.hint_ms is None else self.hint_ms
        self.asks = ("sim",) if plan.usage_gate else ()
        self.upstream = SimulatedProvider(scenario.provider, int(scenario.minutes * MINUTE))
        self.engine = Engine(me=ME)
        self.awaits_acceptance = self.engine.awaits_acceptance
        self.agenda = Agenda(self.end)
        self.asked = 0
        self.net = random_durations.stream(seed, "answers", 0).getrandbits
        self.lag = random_durations.uniform(*scenario.provider.lag_ms)
        self.lags = random_durations.stream(seed, "lags", 0).getrandbits
        self.by_ident: dict[str, SimulatedAgent] = {}
        self.usages: dict[str, Usage] = {}  # of the calls that the provider took, until they are released
        self.has_tokens = any(project.input.table()[-1] or project.output.table()[-1] for project in scenario.project)
        self.has_rates = bool(scenario.provider.rates)
        self.reads_rates = self.has_rates and plan.reads_rates
        settings = scenario.settings()
        self.budgets = settings.budgets
        self.price: Price | None = price_of(MODEL, settings.prices) if settings.prices else None
        self.rival = rival(plan.rival, scenario.cap)
        low, high = scenario.provider.refusal_ms
        self.refusals = random_durations.uniform(low, high + 1)
        self.headers = _HEADERS.get(scenario.provider.accepted)
        self.overloads = scenario.provider.overload_every_min > 0
        self.cap = 0
        self.groups: dict[str, Group] = {}
        self.overtaken = 0
        self.calls: list[tuple[int, int]] = []
        self.refused_at: list[int] = []
        self.limits: list[tuple[int, int]] = []
        self.pool: Pool | None = None  # as soon as there is one
        self.limit = 0
        self.agents = self._agents(seed)
        self.now = START
        self.decided = True  # since the last look at the engine
        self._set_up()

    def _agents(self, seed: int) -> list[SimulatedAgent]:
        agents: list[SimulatedAgent] = []
        several = len({(project.name, project.priority) for project in self.scenario.project}) > 1
        specs = {
            project.name: Spec(models=(MODEL,), kind="requests", host="h", project=project.name)
            for project in self.scenario.project
        }
        lines: dict[str, dict[str, SimulatedAgent]] = {
            name: {} for name in specs
        }  # who waits in the queue, in order of queueing
        for project in self.scenario.project:
            name = f"{project.name} {project.priority:+d}" if several and self._priorities() else project.name
            group = self.groups.setdefault(name, Group())
            spec, line = specs[project.name], lines[project.name]
            for _ in range(project.agents):
                number = len(agents)
                work, network = (
                    random_durations.stream(seed, "work", number),
                    random_durations.stream(seed, "network", number),
                )
                agent = SimulatedAgent(project, group, spec, line, work, network)
                if self.plan.strict_priority:
                    agent.senior = START - PRIORITY_MS * 100_000 * agent.priority if agent.priority else None
                    agent.priority = 0
                agents.append(agent)
        return agents

    def _priorities(self) -> bool:
        return len({project.priority for project in self.scenario.project}) > 1

    def _set_up(self) -> None:
        scenario, plan = self.scenario, self.plan
        if scenario.seniority_s is not None and not plan.strict_priority:
            rules = (plan.rule(scenario.cap),)
            seniority_ms = int(scenario.seniority_s * 1000)
            self.engine.handle(cmd.LoadFile("scenario", "1", 1, rules, seniority_ms), START)
        for budget in self.budgets:
            self.engine.handle(cmd.SetBudget(budget), START)
        for at, _ in self.upstream.changes[1:]:
            self.agenda.push(START + at, self._change)
        if plan.cap != "none":
            self._set_cap(self.upstream.room if plan.cap == "hidden" and self.upstream.has_limit else scenario.cap)
        for agent in self.agents:
            if agent.project.think_first:
                self._think(agent)
            else:
                self.agenda.push(START, self._ask, agent)

    def _set_cap(self, cap: int) -> None:
        cap = max(cap, 1)
        if cap != self.cap:
            self.cap = cap
            self.handle(cmd.SetRule(self.plan.rule(cap)))

    # The engine.

    def handle(self, command: cmd.Command) -> None:
        for event in self.engine.handle(command, self.now):
            if type(event) is Queued:
                agent = self.by_ident[event.ticket.id]
                agent.line[agent.ident] = agent
            elif type(event) is Granted:
                self._granted(self.by_ident[event.id])
        pool = self.pool
        if pool is None:
            self.pool = self.engine.state.pools.get(POOL)
            self._note_limit()
        elif pool.limit != self.limit:
            self._note_limit()
        self.decided = True

    def _note_limit(self) -> None:
        if self.pool is not None and self.pool.limit != self.limit:
            self.limit = self.pool.limit
            self.limits.append((self.now - START, self.limit))

    def _granted(self, agent: SimulatedAgent) -> None:
        now = agent.sent_at = self.now
        if self.rival is not None:
            agent.in_flight = 1 if self.pool is None else self.pool.used
            self.rival.sent(now, agent.in_flight)
        self.agenda.push(now + _NETWORK[agent.network(BITS)], self._arrive, agent)
        line = agent.line
        line.pop(agent.ident, None)
        for other in line.values():  # the first that is still waiting
            passed_ms = agent.asked_at - other.asked_at
            if passed_ms > self.overtaken:
                self.overtaken = passed_ms
            break

    def run(self, progress: Callable[[float], None] | None = None) -> None:
        """To the end. `progress` is told now and then which part is done."""
        agenda, timers, asks = self.agenda, self.engine.deadlines.heap, bool(self.asks)
        due = self.engine.deadlines.due
        tick = cmd.Tick()
        taken = 0
        while True:
            if asks and self.decided:  # else nothing has changed there
                self._ask_usage()
            at = agenda.next_at()
            if timers and timers[0][0] <= at and due(at) is not None:
                if timers[0][0] > self.now:
                    self.now = timers[0][0]
                self.handle(tick)
                continue
            happens = agenda.pop()
            if happens is None:
                break  # the end
            step, agent, value = happens
            self.now = at
            step(agent, value)
            taken += 1
            if progress is not None and not taken & 0x3FFF:
                progress((at - START) / (self.end - START))
        if agenda.steps or self.engine.state.tickets:
            self.now = self.end

    def _ask_usage(self) -> None:
        """After a decision: is a usage question wanted?"""
        if self.engine.questions(self.now):
            self.handle(cmd.AskUsage("requests", "sim", ME))
            self.agenda.push(self.now + _NETWORK[self.net(BITS)], self._question)
        self.decided = False

    # What happens.

    def _think(self, agent: SimulatedAgent) -> None:
        """The agent thinks, and asks then, or when there is work again."""
        think = agent.thinks[agent.work(BITS)]
        at = self.now + think
        if agent.project.idle_min:
            at += idle_ms(agent.project, at - START, think)
        self.agenda.push(at, self._ask, agent)

    def _ask(self, agent: SimulatedAgent, again: int) -> None:
        if not again:
            agent.service_ms = agent.services[agent.work(BITS)]
            agent.asked_at = self.now
            agent.retries, agent.again = 0, False
            agent.left -= 1
            if self.has_tokens:
                self._draw_tokens(agent)
        self.asked = asked = self.asked + 1
        ident = agent.ident = str(asked)
        self.by_ident[ident] = agent
        since = agent.asked_at if agent.senior is None else agent.senior
        self.handle(
            Acquire(ident, agent.spec, ME, True, since, agent.priority, 1 << 50, asks=self.asks, size=agent.size)
        )

    def _draw_tokens(self, agent: SimulatedAgent) -> None:
        """The tokens of the next call, and what the engine is told about its size."""
        project, price = agent.project, self.price
        given, output = agent.inputs[agent.work(BITS)], agent.outputs[agent.work(BITS)]
        if project.max_tokens:
            output = min(output, project.max_tokens)
        usage = Usage(1, given, 0, 0, output, None, RESPONSE)
        agent.usage = usage if price is None else Usage(1, given, 0, 0, output, price.cost(usage), RESPONSE)
        agent.size = Size(
            int(given * project.bytes_per_token),
            project.max_tokens,
            input_price=0 if price is None else price.input,
            output_price=0 if price is None else price.output,
        )

    def _arrive(self, agent: SimulatedAgent, _: int) -> None:
        at, upstream = self.now, self.upstream
        now = at - START
        if self.overloads and upstream.overloaded(now):
            self.agenda.push(at + self.refusals[agent.network(BITS)], self._overloaded, agent)
            return
        used = reserved = agent.usage
        shortage = None
        if self.has_rates:
            reserved = self._reserved(agent)
            shortage = upstream.rates.shortage(reserved, now)
        if shortage is not None or not upstream.takes(now):
            upstream.refuses(now)
            self.refused_at.append(now)
            agent.refused_rate = "" if shortage is None else shortage.rate.unit
            agent.wait_ms = 0 if shortage is None else shortage.wait_ms
            agent.readings = upstream.readings(now) if self.reads_rates else ()
            self.agenda.push(at + self.refusals[agent.network(BITS)], self._refused, agent)
            return
        if self.has_tokens:
            self.usages[agent.ident] = used
        if self.has_rates:
            upstream.rates.take(reserved, now)
        work = agent.service_ms
        duration = work if now >= upstream.slowed_until else upstream.slowed(work)
        finish = at + duration
        lag = self.lag[self.lags(BITS)]
        upstream.starts(finish - START, lag)
        self.calls.append((now, finish - START))
        group = agent.group
        group.waits.append(at - agent.asked_at)
        done = work if upstream.has_limit else used.input + used.output
        group.done += done if finish <= self.end else done * (self.end - at) // duration
        if self.headers is not None and (self.reads_rates or self.awaits_acceptance(agent.ident)):
            headers = at + self.headers[agent.network(BITS)]
            if headers < finish:
                self.agenda.push(headers, self._headers, agent, int(agent.ident))
        self.agenda.push(finish, self._finish, agent)
        if self.plan.sees_lag:
            self.agenda.push(finish + lag, self._free, agent, int(agent.ident))

    def _headers(self, agent: SimulatedAgent, ident: int) -> None:
        if agent.ident == str(ident) and self.awaits_acceptance(agent.ident):
            self.handle(cmd.Active(agent.ident))
        if self.reads_rates and str(ident) in self.usages:
            self.handle(cmd.ObserveRates(str(ident), self.upstream.readings(self.now - START)))

    def _finish(self, agent: SimulatedAgent, _: int) -> None:
        if self.has_tokens:
            self.upstream.served = self.upstream.served.plus(agent.usage)
        if self.has_rates:
            self.upstream.rates.settle(self._reserved(agent), agent.usage, self.now - START)
        if agent.left:
            self._think(agent)
        if self.rival is not None:
            self.rival.accepted(CallSample(agent.sent_at, self.now, agent.in_flight, agent.again))
        if not self.plan.sees_lag:
            self._release(agent.ident, "ok")

    def _free(self, agent: SimulatedAgent, ident: int) -> None:
        self._release(str(ident), "ok")

    def _release(self, ident: str, outcome: str) -> None:
        agent = self.by_ident.pop(ident)
        wait_ms = self.retry_after_ms if outcome == "rate_limited" else None
        if not self.has_tokens:
            self.handle(Release(ident, outcome, wait_ms))
        elif outcome == "ok":
            self.handle(Release(ident, outcome, usage=self.usages.pop(ident)))
        else:
            self._release_refused(agent, ident, outcome, wait_ms)
        if self.rival is not None:
            self._set_cap(self.rival.cap)

    def _release_refused(self, agent: SimulatedAgent, ident: str, outcome: str, wait_ms: int | None) -> None:
        """The provider refused the call, which used nothing."""
        if agent.refused_rate and outcome == "rate_limited":
            wait_ms = agent.wait_ms
        rate = agent.refused_rate if self.reads_rates else ""
        readings = agent.readings
        self.handle(Release(ident, outcome, wait_ms, usage=NOTHING_USED, readings=readings, refused_rate=rate))

    def _reserved(self, agent: SimulatedAgent) -> Usage:
        """What the provider's rates count while the call of an agent runs."""
        return Usage(1, agent.usage.input, 0, 0, agent.project.max_tokens or agent.usage.output)

    def _refused(self, agent: SimulatedAgent, _: int) -> None:
        if self.rival is not None:
            hint_ms = agent.wait_ms if agent.refused_rate else self.hint_ms
            self.rival.refused(CallSample(agent.sent_at, self.now, agent.in_flight, agent.again, hint_ms))
        agent.again = True
        self._release(agent.ident, "local_error" if self.plan.hides_refusals else "rate_limited")
        if not self.plan.client_retries:
            self._ask(agent, 1)
            return
        wait = min(_RETRY_MS << agent.retries, _MOST_RETRY_MS)
        agent.retries = min(agent.retries + 1, 8)
        wait -= wait * agent.network(BITS) >> (BITS + 2)
        hint_ms = agent.wait_ms if agent.refused_rate else self.hint_ms or 0
        wait = max(wait, -(-hint_ms // 1000) * 1000)  # client libraries wait as long as Retry-After says
        self.agenda.push(self.now + wait, self._ask, agent, 1)

    def _overloaded(self, agent: SimulatedAgent, _: int) -> None:
        agent.again = True
        self._release(agent.ident, "local_error" if self.plan.hides_refusals else "overloaded")
        wait = min(_RETRY_MS << agent.retries, _MOST_RETRY_MS)
        agent.retries = min(agent.retries + 1, 8)
        self.agenda.push(self.now + wait, self._ask, agent, 1)

    def _change(self, agent: SimulatedAgent | None, _: int) -> None:
        now = self.now - START
        self.upstream.room = next(room for at, room in reversed(self.upstream.changes) if at <= now)
        if self.plan.cap == "hidden":
            self._set_cap(self.upstream.room)

    def _question(self, agent: SimulatedAgent | None, _: int) -> None:
        """The usage question has come to the provider, which counts and answers."""
        self.agenda.push(self.now + _NETWORK[self.net(BITS)], self._answer, None, self.upstream.told(self.now - START))

    def _answer(self, agent: SimulatedAgent | None, count: int) -> None:
        self.handle(cmd.AnswerUsage("requests", "sim", ME, count))

    def result(self, policy: str, seed: int, *, series: bool = False) -> SimulationResult:
        horizon = self.now - START
        waits = sorted(wait for group in self.groups.values() for wait in group.waits)
        total = sum(group.done for group in self.groups.values())
        slot_ms = self.upstream.slot_ms(horizon) if self.upstream.has_limit else 0
        used = 100 * total / slot_ms if slot_ms else 0.0
        tokens = self.upstream.served.input + self.upstream.served.output
        return SimulationResult(
            scenario=self.scenario.id,
            policy=policy,
            seed=seed,
            horizon_ms=horizon,
            utilisation=round(max(used, self.upstream.rate_used(horizon)), 3),
            tokens_per_min=round(tokens * MINUTE / horizon, 1) if horizon else 0.0,
            refusals=len(self.refused_at),
            requests=len(self.calls),
            wait_p50_s=_part(waits, 0.5),
            wait_p99_s=_part(waits, 0.99),
            wait_max_s=_part(waits, 1),
            overtaken_s=self.overtaken / 1000,
            shares={name: round(100 * each.done / total, 3) if total else 0.0 for name, each in self.groups.items()},
            waits_max_s={name: max(each.waits, default=0) / 1000 for name, each in self.groups.items()},
            limits=self.limits if series else [],
            refused_at=self.refused_at if series else [],
            calls=self.calls if series else [],
        )


def _part(ordered: list[int], part: float) -> float:
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] / 1000 if ordered else 0.0
