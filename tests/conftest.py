"""Settings of the test run."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "default", max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.register_profile("nightly", parent=settings.get_profile("default"), max_examples=10_000)
settings.load_profile(os.environ.get("OUTRIDER_HYPOTHESIS_PROFILE", "default"))
