"""Every run looks at the same examples, unless HYPOTHESIS_PROFILE says otherwise: what fails today failed yesterday."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True, database=None, deadline=None)
settings.register_profile("long", max_examples=2_000, deadline=None)
settings.load_profile("long" if os.environ.get("HYPOTHESIS_PROFILE") == "long" else "same")
