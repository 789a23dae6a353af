"""A store of its own for each test."""

import pytest

from skep.monitor.store import SeriesStore
from skep.store.database import open_store


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "store.sqlite3") as store:
        yield store


@pytest.fixture
def series(store):
    return SeriesStore(store)
