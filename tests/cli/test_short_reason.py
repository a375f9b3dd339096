"""Wait reasons in tables are words; codes are for programs (rule A6)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from fleetgate.cli.output.short_reason import short_reason
from fleetgate.core.entities import Reason
from fleetgate.core.views.wait_reasons import CODES
from fleetgate.present.log_time import LogTimes

MOMENTS = cast(LogTimes, SimpleNamespace(left=lambda until: "5s"))


@pytest.mark.parametrize("code", CODES)
def test_a6_no_table_shows_a_code(code: str):
    text = short_reason(Reason(code, "a sentence", "p", in_flight=2, limit=2, cause="auth", budget="b"), MOMENTS)
    assert "_" not in text
    assert len(text) <= 22


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (Reason("opus_concurrency_cap", "", "host:vm", in_flight=2, limit=2), "full 2/2: host:vm"),
        (Reason("paused", "", "umans", until=9), "paused 5s: umans"),
        (Reason("backoff", "", until=9, cause="overloaded"), "backed off 5s: overloaded"),
        (Reason("backoff", "", cause="auth"), "backed off: auth"),
        (Reason("budget", "", until=9, budget="project:web usd/day"), "budget 5s: project:web usd/day"),
        (Reason("retry_pause", "", until=9), "retry in 5s"),
        (Reason("no_worker", ""), "no worker is running"),
    ],
)
def test_a6_a_short_reason_names_the_pool_and_the_time_left(reason: Reason, text: str):
    assert short_reason(reason, MOMENTS) == text
