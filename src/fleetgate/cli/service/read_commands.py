"""Commands that read from a service elsewhere. With --json, they print what the routes answer.

Each function has the parameters of the command that it stands for, as click has read them.
"""

from __future__ import annotations

import sys
from typing import Any

from fleetgate.cli import exit_codes
from fleetgate.cli.output.pages import read_part
from fleetgate.cli.output.table import Column
from fleetgate.cli.read_only_gate import note, say_json
from fleetgate.cli.service.client import ServiceClient, part, seconds, show_answer, show_rows
from fleetgate.core.errors import BadRequest
from fleetgate.present.json.projects import ShareShape, share_text
from fleetgate.present.text import number_text, printable_lines, span, spans

_FOLLOW_S = 20
_POOLS = (
    *(Column("POOL", least=14, name=True), Column("KIND"), Column("IN USE", right=True), Column("LIMIT", right=True)),
    *(Column("WAITING", right=True), Column("NOTES", least=12)),
)
_LEASES = (
    *(Column("ID"), Column("MODEL", least=14, name=True), Column("AGE", right=True), Column("PROJECT", name=True)),
    *(Column("HOST", least=6), Column("COMMAND", least=10, long=True)),
)
_TICKETS = (
    *(Column("POS", right=True), Column("ID"), Column("MODEL", least=14, name=True), Column("STARTS")),
    *(Column("PROJECT", name=True), Column("COMMAND", least=10, long=True), Column("REASON", least=16)),
)
_JOBS = (
    *(Column("ID"), Column("STATE"), Column("NAME", name=True), Column("PROJECT", name=True)),
    *(Column("MODEL", least=12, name=True), Column("RESULT"), Column("COMMAND", least=10, long=True)),
)


def status(service: ServiceClient, as_json: bool) -> None:
    answer = service.get("/v1/status")
    if not as_json:
        show_answer(False, None, f"{answer['running']} running, {answer['waiting']} waiting", "")
    rows = [
        [
            *(pool["pool"], pool["kind"], str(pool["in_flight"] + pool["foreign"]), _number(pool["limit"])),
            *(str(pool["queued"] or "-"), "; ".join(_pool_notes(pool))),
        ]
        for pool in answer["pools"]
    ]
    show_rows(as_json, answer, _POOLS, rows, "no pools")


def _pool_notes(pool: dict[str, Any]) -> list[str]:
    paused = f"paused until {pool['paused_until']}" if pool["paused_until"] else "paused"
    return [*([paused] if pool["paused"] else []), *([pool["notice"]] if pool["notice"] else [])]


def ps(service: ServiceClient, as_json: bool) -> int:
    answer = service.get("/v1/leases")
    rows = [
        [
            *(each["id"], each["model"] or "-", span(int(each["age_s"] * 1000)), each["project"]),
            *((each["holder"] or {}).get("host") or "-", each["command"] or each["name"] or ""),
        ]
        for each in answer["leases"]
    ]
    show_rows(as_json, answer, _LEASES, rows, "nothing is running")
    return exit_codes.OK


def queue(service: ServiceClient, limit: str | None, offset: str | None, everything: bool, as_json: bool) -> None:
    wanted = read_part(limit, offset, everything=everything)
    most = 10_000 if wanted.limit is None else wanted.limit
    answer = service.get("/v1/tickets", limit=most, offset=wanted.offset)
    rows = [
        [
            *(_position(each), each["id"], ", ".join(each["models"]) or "-", _estimate(each), each["project"]),
            *(each["command"] or "", each["reason"]["text"]),
        ]
        for each in answer["tickets"]
    ]
    show_rows(as_json, answer, _TICKETS, rows, "nothing is waiting")


def usage(
    service: ServiceClient, by: str, since: str, until: str, project: str, model: str, as_json: bool, as_csv: bool
) -> None:
    if as_csv:
        raise BadRequest("--csv is for the store of this machine: use --json")
    answer = service.get("/v1/usage", by=by, since=since, until=until, project=project, model=model)
    names = [name.strip() for name in by.split(",") if name.strip()]
    columns = [*(Column(name.upper(), least=10, name=True) for name in names)]
    columns += [Column(title, right=True) for title in ("CALLS", "TOKENS", "COST")]
    rows = [[*(str(row.get(name) or "-") for name in names), *_used(row)] for row in answer["rows"]]
    total = ["total", *[""] * (len(names) - 1), *_used(answer["total"])]
    show_rows(as_json, answer, columns, [*rows, total] if rows else [], "nothing was used in this time")


def _used(row: dict[str, Any]) -> list[str]:
    cost = "unknown" if row["cost_usd"] is None else f"${row['cost_usd']:.2f}"
    return [
        str(row["calls"]),
        number_text(row["tokens"]),
        cost if row["cost_complete"] or cost == "unknown" else f"≥ {cost}",
    ]


def accounts(service: ServiceClient, as_json: bool) -> None:
    answer = service.get("/v1/accounts")
    columns = [Column("ACCOUNT", least=12, name=True), Column("LOGIN"), Column("AGENTS", right=True)]
    columns += [Column("CALLS", right=True), Column("WAITING", right=True), Column("SLOTS", least=8), Column("NOTES")]
    rows = [
        [
            *(each["account"], each["login"], str(each["agents"]), str(each["calls"]), str(each["waiting"])),
            ", ".join(f"{pool['in_flight']}/{pool['limit']} {pool['kind']}" for pool in each["pools"] if pool["limit"]),
            "; ".join(f"backed off: {held['reason']}" for held in each["backoffs"]),
        ]
        for each in answer["accounts"]
    ]
    show_rows(as_json, answer, columns, rows, "no accounts")


def projects(service: ServiceClient, as_json: bool) -> None:
    answer = service.get("/v1/projects")
    columns = [Column("PROJECT", least=12, name=True), Column("RUNNING", right=True), Column("WAITING", right=True)]
    columns += [Column("WEIGHT", right=True), Column("SHARE", right=True)]
    rows = [
        [
            *(each["project"], str(each["running"]), str(each["waiting"]), str(each["weight"])),
            share_text([ShareShape(**share) for share in each["shares"]]) or "-",
        ]
        for each in answer["projects"]
    ]
    show_rows(as_json, answer, columns, rows, "no project has anything at the gate")


def capacity(service: ServiceClient, model: str, kind: str, project: str, given_class: str, as_json: bool) -> int:
    query = {"models": model, "kind": kind, "project": project, "class": given_class}
    answer = service.get("/v1/capacity", **query)
    free = "no limit" if answer["free"] is None else f"{answer['free']} free"
    reason = (answer["reason"] or {}).get("text")
    show_answer(as_json, answer, f"{answer['level']}: {reason or free}")
    return exit_codes.DEFERRED if answer["level"] == "red" else exit_codes.OK


def select(service: ServiceClient, model: str, rotate: str | None, as_json: bool) -> int:
    models = [name.strip() for name in model.split(",") if name.strip()]
    if rotate is None:
        answer = service.get("/v1/select", models=",".join(models))
    else:
        answer = service.send("POST", "/v1/select", {"models": models, "rotate": rotate})
    if as_json:
        say_json(answer)
    elif answer["model"]:
        show_answer(False, None, answer["model"])
    else:
        note("no model can be used now")
    return exit_codes.OK if answer["model"] else exit_codes.DEFERRED


def jobs(
    service: ServiceClient,
    everything: bool,
    wanted: str | None,
    project: str | None,
    name: str | None,
    since: str | None,
    limit: str | None,
    offset: str | None,
    as_json: bool,
) -> None:
    chosen = read_part(limit, offset)
    query = {"state": wanted, "project": project, "name": name, "since_s": seconds("--since", since), "all": everything}
    answer = service.get("/v1/jobs", **query, limit=chosen.limit, offset=chosen.offset)
    show_rows(as_json, answer, _JOBS, [_job_row(job) for job in answer["jobs"]], "no jobs")


def _job_row(job: dict[str, Any]) -> list[str]:
    code = "" if job["exit_code"] is None else f"exit {job['exit_code']}"
    result = _position(job) if job["state"] == "queued" else job["why"] or code
    model = job["model"] or ", ".join(job["models"]) or "-"
    return [job["id"], job["state"], job["name"] or "", job["project"], model, result, " ".join(job["command"])]


def show(service: ServiceClient, ident: str, as_json: bool) -> int:
    answer = service.get(f"/v1/jobs/{part(ident)}")
    lines = []
    for name, value in answer.items():
        if value not in (None, "", [], {}) and not isinstance(value, dict) and name != "attempts":
            lines.append(f"{name:14}{' '.join(map(str, value)) if isinstance(value, list) else value}")
    if answer["reason"]:
        lines.append(f"{'reason':14}{answer['reason']['text']}")
    show_answer(as_json, answer, *lines)
    return exit_codes.OK


def logs(service: ServiceClient, ident: str, follow: bool, stream: str | None, marked: bool) -> int:
    """The output of a job; with `follow`, as it is printed, until the job has ended."""
    after = ""
    while True:
        wait_s = _FOLLOW_S if follow and after else 0
        page = service.get(f"/v1/jobs/{part(ident)}/output", after=after, stream=stream, wait_s=wait_s)
        for piece in page["pieces"]:
            if piece["stream"] == "fleetgate" and not marked:
                continue
            start = f"{piece['at']} {piece['stream']}: " if marked else ""
            sys.stdout.write(start + printable_lines(piece["text"]))
        sys.stdout.flush()
        after = page["next"]
        if not page["more"] and (page["ended"] or not follow):
            return exit_codes.OK


def cap_ls(service: ServiceClient, as_json: bool) -> None:
    answer = service.get("/v1/caps")
    columns = [Column("SELECTOR", least=14, name=True), Column("KIND"), Column("CAP", right=True), Column("SOURCE")]
    rows = [
        [each["selector"], each["kind"], "auto" if each["auto"] else _number(each["cap"]), each["source"] or ""]
        for each in answer["caps"]
    ]
    show_rows(as_json, answer, columns, rows, "no caps")


def budget_ls(service: ServiceClient, name: str | None, as_json: bool) -> None:
    answer = service.get("/v1/budgets")
    answer["budgets"] = [each for each in answer["budgets"] if not name or name in each["name"]]
    columns = [Column("BUDGET", least=14, name=True), Column("USED", right=True), Column("AMOUNT", right=True)]
    columns += [Column("FREE", right=True), Column("SOURCE")]
    rows = [
        [each["name"], *(f"{each[field]:g}" for field in ("used", "amount", "free")), each["source"] or ""]
        for each in answer["budgets"]
    ]
    show_rows(as_json, answer, columns, rows, "no budgets")


def backoff_ls(service: ServiceClient, as_json: bool) -> None:
    answer = service.get("/v1/backoffs")
    columns = [Column("KEY", least=14, name=True), Column("REASON"), Column("UNTIL")]
    rows = [[each["key"], each["reason"], each["until"] or "-"] for each in answer["backoffs"]]
    show_rows(as_json, answer, columns, rows, "nothing is backed off")


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _position(shape: dict[str, Any]) -> str:
    return f"{shape['position']} of {shape['of']}" if shape["of"] else "-"


def _estimate(shape: dict[str, Any]) -> str:
    found = shape["estimate_s"]
    return "-" if found is None else f"in {spans(int(found[0] * 1000), int(found[1] * 1000))}"
