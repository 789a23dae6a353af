"""Fixtures shared by the tests of this folder."""

import pytest

from skep.testing.process import FakeEngine


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(slots=64) as started:
        yield started
