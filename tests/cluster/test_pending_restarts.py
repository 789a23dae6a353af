"""Restarts that were asked for, while who should hear them comes and goes."""

from dataclasses import dataclass, field

import pytest

from skep.cluster.client import PendingRestarts
from skep.cluster.remote_replica import RemoteReplica
from skep.engines.base import Launch

READY = {"name": "m-0", "node": "n", "url": "http://10.0.0.2:7400", "pid": 77, "restarts": 0, "engine": None,
         "state": "ready", "why": None}  # fmt: skip


@dataclass
class Wire:
    """A cluster client that only takes restarts."""

    spec: bool = False
    sent: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.restarts = PendingRestarts(lambda message: self.sent.append(message["name"]) or True)

    def restart(self, member):
        return self.restarts.ask(member)


@pytest.fixture
def wire():
    return Wire()


@pytest.fixture
def member(wire):
    launch = Launch(name="m-0", model="m", engine="fake", slots=2, context_tokens=512, weights=None, threads=1)
    made = RemoteReplica(launch, wire, lambda: None)
    made.hear(READY)
    made.restart()
    wire.restarts.lose()
    return made


@pytest.mark.parametrize("meanwhile", [{"state": "away", "why": "no word"}, {"state": "waiting", "pid": None}])
def test_one_that_was_only_away_meanwhile_is_restarted_all_the_same(wire, member, meanwhile):
    member.hear({**READY, **meanwhile})
    wire.restarts.again({"m-0": member})
    member.hear(READY)
    wire.restarts.again({"m-0": member})
    assert wire.sent == ["m-0", "m-0"]


@pytest.mark.parametrize("since", [{"pid": 78}, {"restarts": 1}])
def test_one_that_is_another_process_since_is_not(wire, member, since):
    member.hear({**READY, **since})
    wire.restarts.again({"m-0": member})
    assert wire.sent == ["m-0"]
