"""Commands that change something at a service elsewhere. With --json, they print what the routes answer.

Each function has the parameters of the command that it stands for, as click has read them.
"""

from __future__ import annotations

import os
from time import monotonic, sleep
from typing import Any

from fleetgate.cli import exit_codes
from fleetgate.cli.access.remote_service import ServiceRefused
from fleetgate.cli.click_helpers import read_cooldown_ms, read_duration_ms
from fleetgate.cli.read_only_gate import note, say_json, whole_number
from fleetgate.cli.service.client import NoSuchThing, ServiceClient, part, seconds, show_answer
from fleetgate.cli.service.job_variables import given_variables, inherited_variables
from fleetgate.core.errors import BadRequest
from fleetgate.core.model_names import glob, shown

_STOPS_S, _LOOK_S = 30.0, 0.2


# Jobs.


def submit(
    service: ServiceClient,
    command: tuple[str, ...],
    batch: str | None,
    as_json: bool,
    any_candidate: bool,
    work_class: str | None,
    env: tuple[str, ...],
    inherit: tuple[str, ...],
    **options: Any,
) -> int:
    """Queue a job. Its folder is one of the service's machine; without --cwd, the service's own."""
    if batch is not None:
        raise BadRequest("--batch is for the store of this machine: submit the jobs one by one")
    given = {name: value for name, value in options.items() if value not in (None, False)}
    body = {
        "command": list(command),
        "models": _names(given.pop("model", "")),
        "any": any_candidate,
        "env": {**inherited_variables(inherit), **given_variables(env)},
        "class": work_class,
        "project": given.pop("project", None) or os.environ.get("FLEETGATE_PROJECT", ""),
        "retry_on": _names(given.pop("retry_on", "")),
    }
    for name in ("expires", "timeout", "silence"):
        body[f"{name}_s"] = seconds(f"--{name}", given.pop(name, None))
    for name in ("priority", "retries", "slots"):
        if name in given:
            body[name] = _number(f"--{name}", given.pop(name))
    answer = service.send("POST", "/v1/jobs", {**body, **given})
    show_answer(as_json, answer, answer["id"])
    if not as_json:
        why = f": {answer['reason']['text']}" if answer["reason"] else ""
        note(f"{'' if answer['new'] else 'already exists: '}{answer['state']}{why}")
    return exit_codes.OK


def cancel(service: ServiceClient, idents: tuple[str, ...], as_json: bool) -> int:
    """Remove requests from the queue; an id may be that of a job, which is ended."""
    answers = [_cancel(service, ident) for ident in idents]
    show_answer(as_json, {"cancelled": answers}, *(f"cancelled {ident}" for ident in answers))
    return exit_codes.OK


def _cancel(service: ServiceClient, ident: str) -> str:
    try:
        return str(service.send("POST", f"/v1/jobs/{part(ident)}/cancel")["id"])
    except NoSuchThing:
        return str(service.send("POST", "/v1/tickets/cancel", {"ids": [ident]})["cancelled"][0])


def retry(service: ServiceClient, idents: tuple[str, ...], as_json: bool) -> None:
    _each_job(service, idents, "retry", "queued again", as_json)


def approve(service: ServiceClient, idents: tuple[str, ...], as_json: bool) -> None:
    _each_job(service, idents, "approve", "approved", as_json)


def _each_job(service: ServiceClient, idents: tuple[str, ...], verb: str, word: str, as_json: bool) -> None:
    for ident in idents:
        answer = service.send("POST", f"/v1/jobs/{part(ident)}/{verb}")
        show_answer(as_json, answer, f"{answer['id']} is {word}")


# Leases and the queue.


def stop(
    service: ServiceClient,
    words: tuple[str, ...],
    everything: bool,
    host: str | None,
    project: str | None,
    no_wait: bool,
    as_json: bool,
) -> int:
    if everything == bool(words):
        raise BadRequest("which agents? Give IDs or names (see `fleetgate ps`), or --all")
    leases = service.get("/v1/leases")["leases"]
    if everything:
        hosts = [each for each in leases if glob(host or "*", (each["holder"] or {}).get("host") or "")]
        chosen = [each["id"] for each in hosts if each["can_stop"] and project in (None, each["project"])]
    else:
        chosen = [_running(leases, word) for word in words]
    stopping = [ident for ident in chosen if service.send("POST", f"/v1/leases/{part(ident)}/stop")["stopping"]]
    until = monotonic() + (0 if no_wait else _STOPS_S)
    left = list(stopping)
    while left and monotonic() < until:
        sleep(_LOOK_S)
        running = {each["id"] for each in service.get("/v1/leases")["leases"]}
        left = [ident for ident in left if ident in running]
    done = [ident for ident in chosen if ident not in left]
    lines = [*(f"stopped {ident}" for ident in done), *(f"{ident} is being stopped" for ident in left)]
    show_answer(as_json, {"stopped": done, "stopping": left}, *lines or ["nothing to stop"])
    return exit_codes.DEFERRED if left and not no_wait else exit_codes.OK


def _running(leases: list[dict[str, Any]], word: str) -> str:
    """The id of the lease that is meant by its name, its id, or the beginning of its id."""
    whole = [each["id"] for each in leases if word in (each["id"], each["name"])]
    found = whole or [each["id"] for each in leases if each["id"].startswith(word)]
    if len(found) == 1:
        return str(found[0])
    if found:
        raise BadRequest(f"{word!r} may mean {', '.join(sorted(found)[:20])}")
    raise BadRequest(f"nothing that runs is called {word!r}: `fleetgate ps` lists what does")


def bump(service: ServiceClient, ident: str, priority: str | None, as_json: bool) -> None:
    body = {"priority": None if priority is None else _number("--priority", priority)}
    answer = service.send("POST", f"/v1/tickets/{part(ident)}/bump", body)
    place = "it has started" if answer["entered"] else f"position {answer['position']} of {answer['of']}"
    show_answer(as_json, answer, f"{answer['id']}: {place}")


# Pools and limits.


def report(
    service: ServiceClient,
    target: str | None,
    rate_limited: bool,
    retry_after: str | None,
    lease: str | None,
    kind: str | None,
    as_json: bool,
) -> None:
    if not rate_limited:
        raise BadRequest("what happened? Add --rate-limited")
    body = {"target": target, "lease": lease, "kind": kind, "retry_after_s": seconds("--retry-after", retry_after)}
    answer = service.send("POST", "/v1/report", body)
    show_answer(as_json, answer, f"reported a rate limit of {answer['pool'] or target}")


def pause(service: ServiceClient, target: str, duration: str | None, kind: str | None, as_json: bool) -> None:
    answer = service.send("POST", "/v1/pause", {"target": target, "kind": kind, "for_s": seconds("--for", duration)})
    show_answer(as_json, answer, *(f"{pool['pool']} ({pool['kind']}) is paused" for pool in answer["pools"]))


def resume(service: ServiceClient, target: str, kind: str | None, as_json: bool) -> None:
    answer = service.send("POST", "/v1/resume", {"target": target, "kind": kind})
    show_answer(as_json, answer, *(f"{pool['pool']} ({pool['kind']}) is open" for pool in answer["pools"]))


def drain(service: ServiceClient, host: str | None, end: bool, as_json: bool) -> None:
    answer = service.send("POST", "/v1/drain", {"host": host, "end": end})
    word = "is drained" if answer["draining"] else "starts agents again"
    show_answer(as_json, answer, f"{answer['host']} {word}")


def cap_set(
    service: ServiceClient,
    selector: str,
    cap: str,
    cooldown: str | None,
    max_hold: str | None,
    kind: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    known = kind or any(each["selector"] == selector for each in _caps(service))
    of_calls = selector.partition(":")[0] in ("key", "session")
    body = {
        "selector": selector,
        "cap": cap if cap == "auto" else _number("N", cap),
        "kind": kind or (None if known or of_calls else "agents"),
        "cooldown_ms": read_cooldown_ms("--cooldown", cooldown),
        "max_hold_ms": read_duration_ms("--max-hold", max_hold, zero=True),
        **options,
    }
    _show_cap(service.send("PUT", "/v1/caps", body), as_json)


def _caps(service: ServiceClient) -> list[dict[str, Any]]:
    """The caps in force; none for a key that may not read them: then the change is refused, with the role it needs."""
    try:
        found: list[dict[str, Any]] = service.get("/v1/caps")["caps"]
    except ServiceRefused:
        return []
    return found


def cap_rm(service: ServiceClient, selector: str, kind: str | None, as_json: bool) -> None:
    query = f"?selector={part(selector)}" + (f"&kind={kind}" if kind else "")
    _show_cap(service.send("DELETE", f"/v1/caps{query}"), as_json)


def cap_reset(service: ServiceClient, selector: str, kind: str | None, as_json: bool) -> None:
    _show_cap(service.send("POST", "/v1/caps/reset", {"selector": selector, "kind": kind}), as_json)


def _show_cap(answer: dict[str, Any], as_json: bool) -> None:
    cap = "auto" if answer.get("auto") else "no cap" if answer["cap"] is None else f"cap {answer['cap']}"
    show_answer(as_json, answer, f"{answer['selector']} ({answer['kind']}): {cap}")


def budget_set(service: ServiceClient, selector: str, unit: str, amount: str, as_json: bool, **options: Any) -> None:
    answer = service.send("POST", "/v1/budgets", {"selector": selector, "unit": unit, "amount": amount, **options})
    show_answer(as_json, answer, *(f"{each['name']}: {each['amount']:g}" for each in answer["budgets"]))


def budget_rm(service: ServiceClient, name: str, as_json: bool) -> None:
    show_answer(as_json, service.send("DELETE", f"/v1/budgets/{part(name)}"), f"removed {name}")


def budget_unset(service: ServiceClient, name: str, as_json: bool) -> None:
    show_answer(as_json, service.send("POST", f"/v1/budgets/{part(name)}/unset"), f"{name} is that of the config file")


def budget_reset(service: ServiceClient, name: str, as_json: bool) -> None:
    show_answer(as_json, service.send("POST", f"/v1/budgets/{part(name)}/reset"), f"nothing of {name} is used")


def budget_add(service: ServiceClient, name: str, amount: str, until: str | None, as_json: bool) -> None:
    answer = service.send("POST", f"/v1/budgets/{part(name)}/add", {"amount": amount, "until": until})
    show_answer(as_json, answer, f"{name}: {answer['budget']['free']:g} left")


def backoff_set(service: ServiceClient, key: str, reason: str, duration: str | None, as_json: bool) -> None:
    body = {"key": key, "reason": reason, "for_s": seconds("DURATION", duration)}
    answer = service.send("PUT", "/v1/backoffs", body)
    show_answer(as_json, answer, f"{answer['key']} is backed off: {answer['reason']}")


def backoff_clear(service: ServiceClient, keys: tuple[str, ...], everything: bool, as_json: bool) -> None:
    if everything == bool(keys):
        raise BadRequest("which backoffs? Give keys (see `fleetgate backoff ls`), or --all")
    queries = ["all=true"] if everything else [f"key={part(key)}" for key in keys]
    cleared = [key for query in queries for key in service.send("DELETE", f"/v1/backoffs?{query}")["cleared"]]
    if as_json:
        say_json({"cleared": cleared})
    else:
        show_answer(False, None, *[f"cleared {key}" for key in cleared] or ["nothing was backed off"])


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _number(option: str, text: str) -> int:
    if text.startswith("-"):
        return -(whole_number(option, text[1:]) or 0)
    number = whole_number(option, text)
    if number is None:
        raise BadRequest(f"{option} {shown(text)}: valid is a whole number")
    return number
