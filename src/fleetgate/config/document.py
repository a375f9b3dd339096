"""From a TOML document to Settings, along the schema. Every problem is collected; none stops the reading."""

from __future__ import annotations

from typing import Any

from fleetgate.config.budget_rules import budgets_of, prices_of
from fleetgate.config.errors import BadValue, Path, Problems
from fleetgate.config.schema.account_keys import account_sets
from fleetgate.config.schema.keys import SCHEMA
from fleetgate.config.schema.plan_keys import PREEMPT_AFTER_MS
from fleetgate.config.schema.shapes import Array, Map, OneOrMore, Scalar, Shape, Short, Table
from fleetgate.config.settings import HostAuto, JobSettings, Notify, Provider, Serve, Settings, TrustedHeader
from fleetgate.config.units import found
from fleetgate.config.value_types import APIS, Memory, Share
from fleetgate.core.entities import PlanRule, Rule
from fleetgate.core.errors import BadName
from fleetgate.core.handlers.cap_validation import ADAPT_IS_FOR, REFUSALS_ARE_FOR, may_learn
from fleetgate.core.model_names import KINDS, shown

_PROVIDER_FIELDS = {"hold": "hold_ms", "stall": "stall_ms", "comment_after": "comment_after_ms"}
_PLAN_FIELDS = {"drain": "drain_ms", "band": "band_ms"}
_AUTO_OPTIONS = ("reserve", "per_agent", "max")


def settings_of(document: dict[str, Any], problems: Problems) -> Settings:
    """What a document says. With problems, the result lacks what they are about and is not to be used."""
    said = _table(document, SCHEMA, (), problems)
    subagents = said.get("agents", {}).pop("subagents", 0)
    rules: list[Rule] = []
    for kind in KINDS:
        for selector, options in said.get(kind, {}).items():
            rule = _rule(kind, selector, options)
            rules.append(rule)
            if kind == "agents" and rule.on_429 == "adapt":
                problems.append(((kind, selector, "on_429"), f'found "adapt"; {ADAPT_IS_FOR}'))
            if rule.refusals is not None and not may_learn(rule):
                problems.append(((kind, selector, "refusals"), f'found "{rule.refusals}"; {REFUSALS_ARE_FOR}'))
    for name, keys in said.get("projects", {}).items():
        if "cap" in keys and any(rule.selector == f"project:{name}" for rule in rules):
            problems.append((("projects", name, "cap"), f"agents.'project:{name}' is set too; use one of the two"))
        elif "cap" in keys:
            rules.append(Rule("agents", f"project:{name}", cap=keys["cap"]))
    providers = said.get("providers", {})
    for name, written in document["providers"].items() if providers else ():
        if isinstance(written, dict):
            _check_provider(written, ("providers", name), problems)
    host, serve = said.get("agents", {}).get("host", {}), said.get("serve", {})
    jobs, targets = said.get("jobs", {}), said.get("notify", ())
    for at, target in enumerate(targets):
        _check_target(target, ("notify", at), problems)
        if target.get("name") in [other.get("name", "") for other in targets[:at]]:
            problems.append((("notify", at, "name"), f"{shown(target['name'])} is also the name of another target"))
    if host:
        _check_host(document["agents"]["host"], host, problems)
    return Settings(
        models=tuple(said.get("models", ())),
        seniority_ms=said.get("seniority"),
        rules=tuple(rules),
        budgets=budgets_of(said.get("budgets", {}), problems),
        plans=tuple(_plan(name, keys) for name, keys in said.get("plans", {}).items()),
        accounts=account_sets(said.get("accounts", {}), problems),
        prices=prices_of(said.get("prices", {})),
        time_zone=said.get("time_zone", ""),
        host_auto=_host_auto(host),
        providers={name: _provider(name, keys) for name, keys in providers.items()},
        census=tuple(entry["match"] for entry in said.get("census", ()) if "match" in entry),
        census_users=tuple(said.get("census_users", ())),
        wrap=tuple(said.get("run", {}).get("wrap", ())),
        patience_ms=said.get("run", {}).get("patience", Settings().patience_ms),
        on_cutoff=said.get("run", {}).get("on_cutoff", Settings().on_cutoff),
        keep_ms=said.get("history", {}).get("keep", Settings().keep_ms),
        keep_bytes=said.get("history", {}).get("size", Settings().keep_bytes),
        usage_keep_ms=said.get("usage", {}).get("keep", Settings().usage_keep_ms),
        serve=Serve(
            serve.get("concurrency_token", False),
            tuple(serve.get("hosts", ())),
            serve.get("access_log", True),
            serve.get("submit"),
            serve.get("local_users", Serve().local_users),
            serve.get("host", Serve().host),
            serve.get("port", Serve().port),
            serve.get("tls_cert", ""),
            serve.get("tls_key", ""),
            _trusted_header(serve.get("trust_user_header")),
        ),
        subagents=subagents,
        weights={name: keys["weight"] for name, keys in said.get("projects", {}).items() if "weight" in keys},
        preempt_after_ms=said["preempt"].get("after", PREEMPT_AFTER_MS) if "preempt" in said else 0,
        classes=said.get("classes", {}),
        fallback={model: tuple(models) for model, models in said.get("fallback", {}).items()},
        notify=tuple(_target(target, at) for at, target in enumerate(targets, 1)),
        otel_endpoint=said.get("otel", {}).get("endpoint", ""),
        jobs=JobSettings(jobs.get("keep", JobSettings().keep_ms), jobs.get("output", JobSettings().output_bytes)),
    )


def read_shape(value: object, shape: Shape, path: Path, problems: Problems) -> Any:
    """One value by its shape; None where it has a problem."""
    if isinstance(shape, Scalar):
        try:
            return shape.read(value)
        except (BadValue, BadName) as error:
            problems.append((path, str(error)))
            return None
    if isinstance(shape, Short):
        if isinstance(value, dict):
            return _table(value, shape.table, path, problems)
        return _short(value, shape, path, problems)
    if isinstance(shape, Array):
        if not isinstance(value, list):
            problems.append((path, f"found {found(value)}; valid is an {shape.what}"))
            return None
        items = [read_shape(item, shape.item, (*path, at), problems) for at, item in enumerate(value)]
        return [item for item in items if item is not None]
    if isinstance(shape, OneOrMore) and isinstance(value, list):
        places = [((*path, at), item) for at, item in enumerate(value)]
        tables = [(place, read_shape(item, shape.table, place, problems)) for place, item in places]
        return [(place, table) for place, table in tables if table is not None]
    if not isinstance(value, dict):
        valid = shape.what if isinstance(shape, OneOrMore) else "table"
        problems.append((path, f"found {found(value)}; valid is a {valid}"))
        return None
    if isinstance(shape, OneOrMore):
        return [(path, _table(value, shape.table, path, problems))]
    return _table(value, shape, path, problems) if isinstance(shape, Table) else _map(value, shape, path, problems)


def _trusted_header(said: dict[str, Any] | None) -> TrustedHeader | None:
    """A table that lacks something is reported; then nothing is made of it."""
    if said is None or not {"header", "from", "secret_file"} <= said.keys():
        return None
    users = said.get("users", {})
    return TrustedHeader(said["header"], tuple(said["from"]), said["secret_file"], users, said.get("role", ""))


def _table(value: dict[str, Any], table: Table, path: Path, problems: Problems) -> dict[str, Any]:
    keys = {key.name: key for key in table.keys}
    said = {}
    for name, item in value.items():
        if name not in keys:
            from fleetgate.config.schema.unknown_key import unknown_key

            problems.append(((*path, name), unknown_key(name, table)))
            continue
        result = read_shape(item, keys[name].shape, (*path, name), problems)
        if result is not None:
            said[name] = result
    for key in table.keys:
        if key.required and key.name not in value:
            problems.append((path, f"{key.name} is missing, for example {key.name} = {key.example}"))
    return said


def _map(value: dict[str, Any], shape: Map, path: Path, problems: Problems) -> dict[str, Any]:
    said = {}
    for name, item in value.items():
        try:
            known = shape.read_name(name)
        except (BadValue, BadName) as error:
            problems.append(((*path, name), str(error)))
            continue
        result = read_shape(item, shape.special.get(name, shape.value), (*path, name), problems)
        if known in said or (known != name and known in value):
            problems.append(((*path, name), f"another name of {known}, which is set too; use one of the two"))
        elif result is not None:
            said[known] = result
    return said


def _short(value: object, shape: Short, path: Path, problems: Problems) -> dict[str, Any] | None:
    key = next(key for key in shape.table.keys if key.name == shape.key)
    result = read_shape(value, key.shape, path, problems)
    return None if result is None else {shape.key: result}


def _rule(kind: str, selector: str, options: dict[str, Any]) -> Rule:
    auto, reserve = options.get("cap") == "auto", options.get("reserve")
    return Rule(
        kind=kind,
        selector=selector,
        cap=None if auto else options.get("cap"),
        auto=auto,
        cooldown_ms=options.get("cooldown"),
        on_429=options.get("on_429"),
        max_hold_ms=options.get("max_hold"),
        name=options.get("name"),
        usage_gate=options.get("usage_gate"),
        explore=options.get("explore"),
        reserve=reserve if isinstance(reserve, int) else None,
        reserve_share=reserve.share if isinstance(reserve, Share) else None,
        lendable=options.get("lendable"),
        refusals=options.get("refusals"),
    )


def _plan(account: str, keys: dict[str, Any]) -> PlanRule:
    """One plan, in the names of the engine."""
    said = {_PLAN_FIELDS.get(key, key): value for key, value in keys.items()}
    return PlanRule(account, **said)


def _check_host(written: object, options: dict[str, Any], problems: Problems) -> None:
    """The parameters of "auto" say nothing with another cap. (A wrong cap was reported already.)"""
    if options.get("cap") == "auto" or not isinstance(written, dict) or ("cap" in written and "cap" not in options):
        return
    for name in _AUTO_OPTIONS:
        if name in written and (name != "reserve" or isinstance(options.get(name), Memory)):
            problems.append((("agents", "host", name), f'{name} is valid only with cap = "auto"'))


def _host_auto(options: dict[str, Any]) -> HostAuto:
    defaults = HostAuto()
    return HostAuto(
        reserve.size if isinstance(reserve := options.get("reserve"), Memory) else defaults.reserve_bytes,
        options.get("per_agent", defaults.per_agent_bytes),
        options.get("max", defaults.max),
    )


def _provider(name: str, keys: dict[str, Any]) -> Provider:
    """One provider, in the names of Settings."""
    said = {_PROVIDER_FIELDS.get(key, key): value for key, value in keys.items()}
    return Provider(**{"api": _api(name), **said})


def _api(provider: str) -> str:
    """The API that a provider speaks when the file does not say."""
    name = provider.partition("@")[0]
    return "gemini" if name == "google" else name if name in APIS else "openai"


def _check_provider(written: dict[str, Any], path: Path, problems: Problems) -> None:
    """What holds between the keys of one provider."""
    if "key_env" in written and "credential_file" in written:
        problems.append(((*path, "credential_file"), "key_env is set too; use one of the two"))
    for one, other in (("usage_path", "usage_field"), ("usage_field", "usage_path"), ("usage_path", "base_url")):
        if one in written and other not in written:
            problems.append(((*path, one), f"{one} needs {other} as well"))


def _check_target(target: dict[str, Any], path: Path, problems: Problems) -> None:
    """A target has exactly one of url, url_env and command."""
    ways = [name for name in ("url", "url_env", "command") if target.get(name)]
    if len(ways) != 1:
        problems.append((path, f"found {' and '.join(ways) or 'none'}; valid is one of url, url_env and command"))


def _target(target: dict[str, Any], number: int) -> Notify:
    said: dict[str, Any] = {"name": str(number), **target}
    listed: dict[str, Any] = {name: tuple(said[name]) for name in ("command", "events") if name in said}
    return Notify(**(said | listed))


def shown_path(path: Path) -> str:
    """A key's place as a message shows it: `agents.'anthropic/claude-opus-*'.cap`, `census[0].match`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            bare = part.isascii() and part.replace("-", "a").replace("_", "a").isalnum() and len(part) <= 80
            text += ("." if text else "") + (part if bare else shown(part))
    return text
