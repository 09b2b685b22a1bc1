"""Shared by all tests: readable assertions in the contract suites that are shipped."""

import pytest

pytest.register_assert_rewrite("holdfast.testing.contracts")
