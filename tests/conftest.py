"""What all tests share: Hypothesis without deadlines (the box is shared, and timings on it wander)."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "house", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("house")
