"""This skep on a file that a newer one has upgraded: each command says so in one line, and the
gateway serves.
"""

import sqlite3
from contextlib import closing

import pytest
from hive_client import ask, eventually

from skep.store.database import MIGRATIONS, open_store

NEWER = (
    f"was written by a newer skep (schema {len(MIGRATIONS) + 1}, this one knows {len(MIGRATIONS)})"
)


@pytest.fixture
def newer_store(paths):
    open_store(paths.store).close()
    with closing(sqlite3.connect(paths.store)) as connection:
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
        connection.commit()


@pytest.mark.parametrize(
    "words",
    [
        ("runs", "list"),
        ("swarm", "list"),
        ("monitor", "status"),
        ("monitor", "run", "--once"),
        ("monitor", "add", "box", "--url", "http://127.0.0.1:9", "--no-check"),
        ("store", "info"),
        ("store", "gc", "--older-than", "1d"),
    ],
)
def test_a_command_says_that_a_newer_skep_wrote_the_file(skep, paths, newer_store, words):
    done = skep(*words, check=1)
    assert (
        done.stderr
        == f"error: `{paths.store}` {NEWER}\nhint: upgrade skep, or name another file\n"
    )


def test_the_gateway_serves_while_the_file_is_a_newer_one(skep, configure, up, paths, newer_store):
    configure()
    url = up()["url"]
    assert ask(url)[0] == 200
    log = paths.logs / "gateway.log"
    eventually(lambda: NEWER in log.read_text())
    assert ask(url)[0] == 200
    skep("down", check=0)
