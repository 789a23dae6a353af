"""`skep store info` and `skep gc` on what the gateway left in the store."""

import json
import sqlite3
import time
from pathlib import Path

import pytest

from skep.store.database import open_store

VERSION_1 = Path(__file__).parent.parent / "store" / "versions" / "1.sql"
DAY_S = 86400


def row(name, age_s):
    return (
        name, time.time() - age_s, "/v1/models", None, "normal", None, None, 0, "refused", 503, "loading",
        False, None, None, 0.01, None, None, None, 0, 200,
    )  # fmt: skip


@pytest.fixture
def store_path(tmp_path):
    return tmp_path / "data" / "skep" / "skep.sqlite3"


def test_old_gateway_requests_are_counted_told_and_deleted(skep, store_path):
    with open_store(store_path) as store:
        store.append_gateway_values([row("old", 100 * DAY_S), row("older", 200 * DAY_S), row("new", DAY_S)])
    assert json.loads(skep("store", "info", "--json", check=0).stdout)["gateway_requests"] == 3
    assert "3 gateway requests" in skep("store", "info", check=0).stdout
    told = skep("gc", "--older-than", "90d", "--dry-run", check=0).stderr
    assert "would delete 0 runs, 2 gateway requests and 0 old logs" in told
    assert json.loads(skep("gc", "--older-than", "90d", "--dry-run", "--json", check=0).stdout)["gateway_requests"] == 2
    done = json.loads(skep("gc", "--older-than", "90d", "--json", check=0).stdout)
    assert (done["gateway_requests"], done["runs"], done["dry_run"]) == (2, [], False)
    with open_store(store_path, read_only=True) as store:
        assert [kept.id for kept in store.gateway_requests()] == ["new"]


def test_gc_without_an_age_leaves_gateway_requests_alone(skep, store_path):
    with open_store(store_path) as store:
        store.append_gateway_values([row("old", 1000 * DAY_S)])
    assert json.loads(skep("gc", "--incomplete", "--json", check=0).stdout)["gateway_requests"] == 0
    assert json.loads(skep("store", "info", "--json", check=0).stdout)["gateway_requests"] == 1


def test_nothing_is_counted_where_there_is_no_store(skep, store_path):
    assert json.loads(skep("store", "info", "--json", check=0).stdout)["gateway_requests"] == 0
    assert json.loads(skep("gc", "--older-than", "0s", "--json", check=0).stdout)["gateway_requests"] == 0
    assert not store_path.exists()


def test_commands_that_only_read_open_a_store_of_the_version_before(skep, store_path):
    """They come first after an upgrade, and told their users to run themselves."""
    store_path.parent.mkdir(parents=True)
    database = sqlite3.connect(store_path)
    database.executescript(VERSION_1.read_text())
    database.close()
    assert [run["id"] for run in json.loads(skep("runs", "--json", check=0).stdout)] == ["20261115-142233-a1b2c3"]
    assert json.loads(skep("store", "info", "--json", check=0).stdout)["runs"] == 1
