"""What all unit tests share."""

from hypothesis import HealthCheck, settings

# A property is tried with the same examples each time, however long one takes: what a run says depends on the
# code, not on chance or on what else the machine does.
settings.register_profile(
    "project", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("project")
