"""Replica actors on a real cluster without a gateway: over, cancelled, failed, and on nodes that
come back.
"""

import asyncio
import os
import subprocess
import time

import pytest
from clusters import until
from msgspec import to_builtins
from msgspec.structs import replace

from skep.cluster.replica_actor import ABANDONED_AFTER_S
from skep.engines.base import Launch, PlacementRequest
from skep.host.processes import MARK
from skep.paths import user_paths
from skep.supervisor.lifecycle import RestartPolicy

pytestmark = pytest.mark.ray
ONE = Launch(
    "m-0",
    "fake",
    "m",
    None,
    slots=2,
    context_tokens=100,
    threads=1,
    place=PlacementRequest(cpus=1.0),
)
PATIENCE_S = 60.0


@pytest.fixture
def actors(nodes):
    """This process as a driver; actors and places of the hive are gone with the cluster."""
    import ray

    from skep.cluster.connect import join
    from skep.cluster.ray_driver import ActorManager

    nodes.add("b", "c")
    join(nodes.address)
    try:
        yield ActorManager("h", "key", to_builtins(RestartPolicy()))
    finally:
        ray.shutdown()


class Words(list):
    def say(self, *words):
        self.append(words)

    async def until_it_waits(self):
        while not any("waits for room" in (why or "") for _, why in self):
            await asyncio.sleep(0.1)


def row_of(actors, name="m-0"):
    """As its actor reports it to a gateway; empty while there is none or it is moved."""
    try:
        report = asyncio.run(actors.ask(name, "report", "gateway", -1, 0.0, timeout_s=20.0))
    except Exception:
        return {}
    return report["row"] if report is not None else {}


def row_when(actors, state, name="m-0", **fields):
    """Of an actor, as soon as it reports that it is so."""

    def matching_row():
        row = row_of(actors, name)
        right = (
            row
            and row["state"] == state
            and all(row[key] == value for key, value in fields.items())
        )
        return row if right else None

    row = until(matching_row, PATIENCE_S)
    assert row, row_of(actors, name)
    return row


def ensure(actors, launch, messages=None):
    heard = Words() if messages is None else messages
    asyncio.run(actors.ensure(launch, {}, heard.say))


def test_an_actor_that_is_over_gives_way_to_a_new_one(actors):
    """An engine that was ended while the head was lost:
    its actor and its place are still there.
    """
    ensure(actors, ONE)
    before = row_when(actors, "ready")
    ensure(actors, ONE)
    assert row_when(actors, "ready")["incarnation"] == before["incarnation"], (
        "one that stands is left alone"
    )
    asyncio.run(actors.end("m-0", headless=True))
    assert actors.all_names() == ["m-0"]
    ensure(actors, ONE)
    assert until(lambda: row_of(actors).get("incarnation") != before["incarnation"], PATIENCE_S)
    assert row_when(actors, "ready")["pid"] != before["pid"]
    asyncio.run(actors.end("m-0"))
    assert actors.all_names() == []


def test_a_cancelled_one_leaves_no_place_behind_that_would_take_what_comes_free(actors):
    large = replace(ONE, place=PlacementRequest(cpus=64.0))

    async def play(launch, wait_s):
        words = Words()
        making = asyncio.create_task(actors.ensure(launch, {}, words.say))
        await asyncio.wait({making}, timeout=wait_s)
        making.cancel()
        await asyncio.wait({making})
        assert making.cancelled()
        return words

    assert "waits for room: needs 64 CPUs on one node; " in asyncio.run(play(large, 4.0))[-1][1]
    assert actors.all_names() == []
    for wait_s in (0.0, 0.002, 0.01, 0.05):  # in the middle of making it
        asyncio.run(play(ONE, wait_s))
        assert actors.all_names() == []


def test_a_node_that_was_started_anew_gets_its_replica_back(nodes, actors):
    """It has another id, and the place of the replica names the old one."""
    import ray

    bound = replace(ONE, place=PlacementRequest(cpus=1.0, nodes=("b",)))
    ensure(actors, bound)
    before = row_when(actors, "ready", node="b")
    nodes.kill("b")
    assert until(
        lambda: not any(node["Alive"] and node["NodeName"] == "b" for node in ray.nodes()),
        PATIENCE_S,
    )
    nodes.add("b")

    def again():
        ensure(actors, bound)
        return row_of(actors).get("node_id", before["node_id"]) != before["node_id"]

    assert until(again, PATIENCE_S, every_s=2.0), row_of(actors)
    assert row_when(actors, "ready", node="b")["incarnation"] != before["incarnation"]


def test_what_failed_before_its_engine_was_made_is_tried_again(nodes, actors, tmp_path):
    """And what a killed guard left behind on the node is gone before the engine starts."""
    weights = tmp_path / "weights"
    ensure(actors, replace(ONE, checkpoint=str(weights)))
    assert "does not exist on this node" in row_when(actors, "failed")["why"]
    mark = f"{user_paths(os.environ).logs / 'posts' / f'h@{nodes.address}'}:m-0;"
    with subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: mark}) as popen:
        weights.mkdir()
        asyncio.run(actors.ask("m-0", "restart"))
        row_when(actors, "ready")
        assert popen.wait(10.0) == -9


def test_a_pull_that_failed_is_tried_again_by_itself(actors):
    missing = PlacementRequest(cpus=1.0, source="/no/such/file.gguf")
    ensure(actors, replace(ONE, place=missing))
    assert "next attempt in 5 s" in row_when(actors, "backoff")["why"]
    assert "next attempt in 10 s" in until(
        lambda: (why := row_of(actors)["why"]) and "in 10 s" in why and why, PATIENCE_S
    )
    began = time.monotonic()
    asyncio.run(actors.end("m-0"))
    assert time.monotonic() - began < 10.0, "nobody waits for it"


def test_an_actor_that_ray_cannot_make_is_told_as_failed(actors):
    words = Words()
    actors.policy = {"start_deadline_s": "never"}
    ensure(actors, ONE, words)
    assert words[-1][0] == "failed"
    assert "start_deadline_s" in words[-1][1]


def test_an_actor_that_nobody_asks_begins_and_belongs_to_one_gateway(actors):
    actors.policy = to_builtins(RestartPolicy(start_deadline_s=0.01, failures_before_ready=1))
    ensure(actors, ONE)

    def failed():
        return (
            asyncio.run(actors.ask("m-0", "describe"))["row"]["why"] == "not healthy within 0.01 s"
        )

    assert until(failed, PATIENCE_S)
    assert [asyncio.run(actors.ask("m-0", "claim", gateway)) for gateway in "ab"] == ["a", "a"]


def test_an_actor_that_no_gateway_asks_any_more_ends_and_leaves_its_place(actors):
    """Ray would restart one that merely exits."""
    ensure(actors, ONE)
    row_when(actors, "ready")
    assert until(lambda: actors.all_names() == [], ABANDONED_AFTER_S + 60.0, every_s=2.0)
