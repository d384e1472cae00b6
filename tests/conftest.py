"""What all tests share: Hypothesis without deadlines."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "house", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("house")
