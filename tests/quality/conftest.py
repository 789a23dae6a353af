"""Fixtures shared by the tests of this folder."""

import pytest

from skep.store.database import open_store


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "s.sqlite3") as opened:
        yield opened
