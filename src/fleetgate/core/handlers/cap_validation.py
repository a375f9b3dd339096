"""What a cap may say. Raises BadRequest, before anything is changed."""

from __future__ import annotations

from fleetgate.core.entities import Rule
from fleetgate.core.errors import BadRequest
from fleetgate.core.limits import POLICIES
from fleetgate.core.model_names import KINDS, parse_selector, shown
from fleetgate.core.pools.effective_caps import REFUSALS

ADAPT_IS_FOR = "a limit is learned from model calls, of kind requests; valid here are step, pause, fixed"
REFUSALS_ARE_FOR = 'the price of a refusal matters where the limit is learned: in requests, with on_429 = "adapt"'


def check_cap(cap: int, of: str) -> None:
    if not 1 <= cap <= 1_000_000:
        raise BadRequest(f"cap {cap} for {of}: valid is 1 to 1000000 (to stop a pool: `fleetgate pause`)")


def check_rule(rule: Rule) -> None:
    if rule.kind not in KINDS:
        raise BadRequest(f"kind {shown(rule.kind)}: valid are {' and '.join(KINDS)}")
    selector = parse_selector(rule.selector)
    if selector.scope == "session" and rule.kind != "requests":
        raise BadRequest(f"session ({rule.kind}): a session makes model calls, of kind requests")
    if rule.cap is not None:
        check_cap(rule.cap, rule.selector)
    if rule.usage_gate and selector.scope != "model":
        raise BadRequest(f"usage_gate for {rule.selector}: only a provider, account or model has one")
    if rule.auto and rule.selector != "host":
        raise BadRequest(f"{rule.selector} = auto: only host can be automatic")
    if rule.cooldown_ms is not None and not 0 <= rule.cooldown_ms <= 86_400_000:
        raise BadRequest(f"cooldown {rule.cooldown_ms} ms: valid is 0 to 24 h")
    if rule.on_429 is not None and rule.on_429 not in POLICIES:
        raise BadRequest(f"on_429 {shown(rule.on_429)}: valid are {', '.join(POLICIES)}")
    if rule.on_429 == "adapt" and rule.kind != "requests":
        raise BadRequest(f"on_429 adapt for {rule.kind}: {ADAPT_IS_FOR}")
    if rule.refusals is not None and rule.refusals not in REFUSALS:
        raise BadRequest(f"refusals {shown(rule.refusals)}: valid are {', '.join(REFUSALS)}")
    if rule.refusals is not None and not may_learn(rule):
        raise BadRequest(f"refusals for {rule.selector} ({rule.kind}): {REFUSALS_ARE_FOR}")
    if (rule.reserve is not None and rule.reserve < 0) or not 0 <= (rule.reserve_share or 0) <= 10_000:
        raise BadRequest(f"reserve for {rule.selector}: valid is 0 or more slots, or 0 to 100 percent")
    if rule.max_hold_ms is not None and rule.max_hold_ms < 0:
        raise BadRequest(f"max_hold {rule.max_hold_ms} ms: valid is 0 (none) or more")


def may_learn(rule: Rule) -> bool:
    """Whether a limit could be learned under this rule: `adapt` is the default for model calls."""
    return rule.kind == "requests" and parse_selector(rule.selector).scope == "model" and rule.on_429 in (None, "adapt")
