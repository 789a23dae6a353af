"""Fixtures shared by the tests of this folder."""

import pytest

from skep.store.database import open_store
from skep.testing.process import FakeEngine


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(slots=64) as started:
        yield started


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "s.sqlite3") as opened:
        yield opened
