"""`skep scale`: another number of replicas while it serves."""

import json

import pytest
from talk import rest_of, rows_of, streaming

from skep.cli.control import parse_wanted
from skep.errors import UserError

FILE = """
drain = "10s"
[gateway]
port = 0
[[serve]]
model = "fake-model"
engine = "fake"
slots = 2
extra = ["--token-ms=20"]
"""


@pytest.fixture
def url(skep, tmp_path):
    (tmp_path / "skep.toml").write_text(FILE)
    return json.loads(skep("up", "-d", "--json", check=0).stdout)["url"]


def replicas(skep):
    return {name: row["pid"] for name, row in rows_of(skep).items() if row["kind"] == "replica"}


def test_replicas_come_and_go_while_a_stream_goes_on(skep, url):
    before = replicas(skep)
    with streaming(url, max_tokens=60) as sock:
        received = sock.recv(1000)
        done = skep("scale", "fake-model=3", "--wait", check=0)
        assert "started: fake-model-1, fake-model-2" in done.stderr
        assert "1 -> 3 replicas, until the next `skep reload` or `skep up`" in done.stderr
        during = replicas(skep)
        assert (len(during), during["fake-model-0"]) == (3, before["fake-model-0"])
        told = json.loads(skep("scale", "fake-model=1", "--wait", "--json", check=0).stdout)
        assert (told["before"], told["removed"]) == (3, ["fake-model-1", "fake-model-2"])
        received = rest_of(sock, received)
    assert b"[DONE]" in received
    assert replicas(skep) == before
    skep("scale", "fake-model=2", "--wait", check=0)
    shown = json.loads(skep("scale", "--json", check=0).stdout)
    assert shown == [{"model": "fake-model", "replicas": 2, "ready": 2}]
    skep("reload", "--wait", check=0)
    assert replicas(skep) == before, "what the file says holds again"
    for wanted, code, words in [
        ("nobody=2", 2, "there is no model `nobody` that skep starts here"),
        ("fake-model=0", 2, "`fake-model` cannot have 0 replicas"),
        ("nobody", 2, "there is no model `nobody`"),
    ]:
        assert words in skep("scale", wanted, check=code).stderr
    assert replicas(skep) == before


def test_without_a_hive_there_is_nothing_to_scale(skep):
    assert "skep is not running" in skep("scale", "m=2", check=1).stderr


def test_a_model_and_a_number_are_told_apart():
    assert parse_wanted("m=3") == ("m", 3)
    assert parse_wanted("m") == ("m", None)
    assert parse_wanted("a=b=3") == ("a=b", 3)
    for wrong in ("m=", "=3", "m=-1", "m=1.5", "m=²"):
        with pytest.raises(UserError, match="is not MODEL=N"):
            parse_wanted(wrong)
