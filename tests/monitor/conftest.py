"""What is watched, in a store of its own for each test."""

import pytest

from skep.monitor.store import SeriesStore


@pytest.fixture
def series(store):
    return SeriesStore(store)
