"""Shared by all tests: readable assertions in the contract suites that are shipped, and how hypothesis searches."""

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("holdfast.testing.contracts")

# No deadline for an example: a busy machine is not a failing test. Fifty examples keep the unit tests quick.
settings.register_profile("quick", deadline=None, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile("quick")
