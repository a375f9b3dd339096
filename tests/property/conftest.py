"""How long the property tests look.

By default (and in CI) every run looks at the same examples, for about a minute. To look for longer, at new ones:

    HYPOTHESIS_PROFILE=long .venv/bin/python -m pytest tests/property

A failure prints the steps that lead to it; with `long` it is also kept in .hypothesis/ and tried first next time.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

_COMMON = settings(
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],  # explaining takes longer than all the rest
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    print_blob=True,
    report_multiple_bugs=False,
)

settings.register_profile("ci", parent=_COMMON, derandomize=True, database=None, max_examples=40)
settings.register_profile("long", parent=_COMMON, max_examples=2_000, stateful_step_count=120)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
