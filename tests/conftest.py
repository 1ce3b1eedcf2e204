"""What holds for all property tests: how long a draw takes says something about the machine, nothing about the code."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("headrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headrace")
