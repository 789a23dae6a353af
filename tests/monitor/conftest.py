"""What is watched, in a store of its own for each test, on a machine in UTC."""

import time

import pytest

from skep.monitor.store import SeriesStore


@pytest.fixture
def series(store):
    return SeriesStore(store)


@pytest.fixture(autouse=True)
def utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
