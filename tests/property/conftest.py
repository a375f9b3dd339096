"""How long the property tests look.

By default (and in CI) every run looks at the same examples, for about a minute. To look for longer, at new ones:

    HYPOTHESIS_PROFILE=long .venv/bin/python -m pytest tests/property

A failure prints the steps that lead to it; with `long` it is also kept in .hypothesis/ and tried first next time.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

_QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]

settings.register_profile("ci", derandomize=True, deadline=None, database=None, suppress_health_check=_QUIET)
settings.register_profile(
    "long", deadline=None, max_examples=5_000, stateful_step_count=120, print_blob=True, suppress_health_check=_QUIET
)
settings.register_profile("quick", parent=settings.get_profile("ci"), max_examples=10, phases=[Phase.generate])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
