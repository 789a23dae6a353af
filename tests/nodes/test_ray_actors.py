"""Replica actors on a real cluster without a gateway: over, cancelled, failed, and on nodes that come back."""

import asyncio
import contextlib
import os
import signal
import subprocess
import time

import pytest
from clusters import until, worker_of
from msgspec import to_builtins
from msgspec.structs import replace

from skep.cluster.replica_registry import ANNOUNCE_EVERY_S
from skep.engines.base import Launch, PlacementRequest
from skep.host.processes import MARK
from skep.paths import user_paths
from skep.supervisor.lifecycle import RestartPolicy

pytestmark = pytest.mark.ray
ONE = Launch("m-0", "fake", "m", None, slots=2, context_tokens=100, threads=1, place=PlacementRequest(cpus=1.0))
PATIENCE_S = 60.0


@pytest.fixture
def hive(nodes):
    """This process as a driver; actors and places of the hive are gone with the cluster."""
    import ray

    from skep.cluster.actor_manager import ActorManager
    from skep.cluster.connect import join
    from skep.cluster.replica_registry import make_registry

    nodes.add("b", "c")
    join(nodes.address)
    try:
        yield ActorManager("h", "key", {}), make_registry("h")
    finally:
        ray.shutdown()


class Words(list):
    def say(self, *words):
        self.append(words)

    async def until_it_waits(self):
        while not any("waits for room" in (why or "") for _, why in self):
            await asyncio.sleep(0.1)


def rows(registry):
    """Empty while the registry is moved to another node."""
    import ray

    try:
        return ray.get(registry.state.remote(), timeout=20.0)["rows"]
    except ray.exceptions.RayActorError:
        return {}


def row_when(registry, state, name="m-0", **more):
    """Of an actor, as soon as the registry has heard that it is so."""

    def found():
        row = rows(registry).get(name)
        right = row and row["state"] == state and all(row[key] == value for key, value in more.items())
        return row if right else None

    row = until(found, PATIENCE_S)
    assert row, rows(registry)
    return row


def ensure(actors, launch, said=None, avoid=()):
    heard = Words() if said is None else said
    actors.avoid = avoid
    asyncio.run(actors.ensure(launch, {}, heard.say))


def test_an_actor_that_is_over_gives_way_to_a_new_one(hive):
    """An engine that was ended while the head was lost: its actor and its place are still there."""
    actors, registry = hive
    ensure(actors, ONE)
    before = row_when(registry, "ready")
    ensure(actors, ONE)
    assert row_when(registry, "ready")["incarnation"] == before["incarnation"], "one that stands is left alone"
    asyncio.run(actors.end("m-0", headless=True))
    assert actors.all_names() == ["m-0"]
    ensure(actors, ONE)
    assert until(lambda: rows(registry)["m-0"]["incarnation"] != before["incarnation"], PATIENCE_S)
    assert row_when(registry, "ready")["pid"] != before["pid"]
    asyncio.run(actors.end("m-0"))
    assert actors.all_names() == []


def test_a_cancelled_one_leaves_no_place_behind_that_would_take_what_comes_free(hive):
    actors, _ = hive
    large = replace(ONE, place=PlacementRequest(cpus=64.0))

    async def play(wait_s):
        said = Words()
        making = asyncio.create_task(actors.ensure(large, {}, said.say))
        await asyncio.wait({making}, timeout=wait_s)
        making.cancel()
        await asyncio.wait({making})
        assert making.cancelled()
        return said

    assert "waits for room: needs 64 CPUs on one node; " in asyncio.run(play(4.0))[-1][1]
    assert actors.all_names() == []
    for wait_s in (0.0, 0.002, 0.01, 0.05):  # in the middle of making it
        asyncio.run(play(wait_s))
        assert actors.all_names() == []


def test_nodes_that_are_avoided_get_nothing_until_they_are_not(hive):
    actors, registry = hive
    for number in range(2):
        ensure(actors, replace(ONE, name=f"m-{number}"), avoid=("b", "head"))
        row_when(registry, "ready", f"m-{number}", node="c")
    said = Words()

    async def play():
        actors.avoid = ("b",)
        full = asyncio.create_task(actors.ensure(replace(ONE, name="m-2"), {}, said.say))
        await said.until_it_waits()
        actors.avoid = ()
        await full

    asyncio.run(asyncio.wait_for(play(), PATIENCE_S))
    assert row_when(registry, "ready", "m-2")["node"] == "b"


def test_nodes_that_are_shunned_are_taken_when_only_they_have_room(hive):
    """Both are full: it waits for the other one, and goes to whichever has room first."""
    actors, registry = hive
    wide = replace(ONE, place=PlacementRequest(cpus=2.0, shunned=("b",)))
    for name, node in (("m-0", "c"), ("m-1", "b")):
        ensure(actors, replace(wide, name=name), avoid=("head",))
        row_when(registry, "ready", name, node=node)
    said = Words()

    async def play():
        third = asyncio.create_task(actors.ensure(replace(wide, name="m-2"), {}, said.say))
        await said.until_it_waits()
        await actors.end("m-1")
        await third

    asyncio.run(asyncio.wait_for(play(), PATIENCE_S))
    row_when(registry, "ready", "m-2", node="b")


def test_a_node_that_was_started_anew_gets_its_replica_back(nodes, hive):
    """It has another id, and the place of the replica names the old one."""
    import ray

    actors, registry = hive
    bound = replace(ONE, place=PlacementRequest(cpus=1.0, nodes=("b",)))
    ensure(actors, bound)
    before = row_when(registry, "ready", node="b")
    nodes.kill("b")
    assert until(lambda: not any(node["Alive"] and node["NodeName"] == "b" for node in ray.nodes()), PATIENCE_S)
    nodes.add("b")

    def again():
        ensure(actors, bound)
        return rows(registry).get("m-0", before)["node_id"] != before["node_id"]

    assert until(again, PATIENCE_S, every_s=2.0), rows(registry)
    assert row_when(registry, "ready", node="b")["incarnation"] != before["incarnation"]


def test_what_failed_before_its_engine_was_made_is_tried_again(nodes, hive, tmp_path):
    """And what a killed guard left behind on the node is gone before the engine starts."""
    actors, registry = hive
    weights = tmp_path / "weights"
    ensure(actors, replace(ONE, checkpoint=str(weights)))
    assert "does not exist on this node" in row_when(registry, "failed")["why"]
    mark = f"{user_paths(os.environ).logs / 'posts' / f'h@{nodes.address}'}:m-0;"
    with subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: mark}) as left:
        weights.mkdir()
        asyncio.run(actors.ask("m-0", "restart"))
        row_when(registry, "ready")
        assert left.wait(10.0) == -9


def test_a_pull_that_failed_is_tried_again_by_itself(hive):
    actors, registry = hive
    missing = PlacementRequest(cpus=1.0, source="/no/such/file.gguf")
    ensure(actors, replace(ONE, place=missing))
    assert "next attempt in 5 s" in row_when(registry, "backoff")["why"]
    assert "next attempt in 10 s" in until(
        lambda: (why := rows(registry)["m-0"]["why"]) and "in 10 s" in why and why, PATIENCE_S
    )
    began = time.monotonic()
    asyncio.run(actors.end("m-0"))
    assert time.monotonic() - began < 10.0, "nobody waits for it"


def test_actors_go_on_telling_a_registry_they_know_without_a_head(nodes, hive):
    actors, registry = hive
    ensure(actors, ONE)
    row_when(registry, "ready")
    nodes.kill_gcs()
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        assert rows(registry)["m-0"]["state"] == "ready"
        time.sleep(0.5)
    assert asyncio.run(actors.ask("m-0", "describe"))["name"] == "m-0"
    asyncio.run(actors.end("m-0", headless=True))


def test_an_actor_that_ray_cannot_make_is_told_as_failed(hive):
    actors, _ = hive
    said = Words()
    actors.policy = {"start_deadline_s": "never"}
    ensure(actors, ONE, said)
    assert said[-1][0] == "failed"
    assert "start_deadline_s" in said[-1][1]


def test_an_actor_heeds_the_restart_policy_of_now_also_when_ray_has_started_it_anew(hive):
    """Its engine goes on meanwhile, as on one box."""
    import ray

    actors, registry = hive
    ensure(actors, ONE)
    before = row_when(registry, "ready")
    hasty = to_builtins(RestartPolicy(start_deadline_s=0.01, failures_before_ready=1))
    ray.get(registry.claim.remote("gateway", hasty))
    until(lambda: False, 2 * ANNOUNCE_EVERY_S)  # it hears of it with its next announcement
    assert row_when(registry, "ready")["pid"] == before["pid"]
    os.kill(worker_of(before["pid"]), signal.SIGKILL)
    row = row_when(registry, "failed")
    assert (row["why"], row["incarnation"] != before["incarnation"]) == ("not healthy within 0.01 s", True)
    ray.get(registry.claim.remote("gateway", to_builtins(RestartPolicy())))

    def again():
        """It hears of it with its next announcement, and then has the time to start."""
        asyncio.run(actors.ask("m-0", "restart"))
        return until(lambda: rows(registry)["m-0"]["state"] == "ready", 5.0)

    assert until(again, PATIENCE_S), rows(registry)


def test_a_registry_that_was_started_anew_is_not_taken_in_by_an_actor_of_before(hive):
    """A node comes back with an actor that Ray has started elsewhere meanwhile: that one goes on."""
    import ray

    actors, registry = hive
    ensure(actors, ONE)
    before = row_when(registry, "ready", life=0)
    os.kill(worker_of(before["pid"]), signal.SIGKILL)
    row_when(registry, "ready", life=1, actor=before["actor"])
    ray.kill(registry, no_restart=False)

    def told(row):
        with contextlib.suppress(ray.exceptions.RayActorError):
            return ray.get(registry.announce.remote("m-0", row))

    assert until(lambda: told(before), PATIENCE_S)["end"] in (True, False), "it may have spoken first"
    now = row_when(registry, "ready", life=1)
    assert told(before)["end"] is True
    stranger = {**now, "incarnation": "stranger", "actor": "f" * len(now["actor"]), "life": 7}
    assert told(stranger)["end"] is True, "of two actors, the one that has the name"
    assert row_when(registry, "ready")["incarnation"] == now["incarnation"]
    asyncio.run(actors.end("m-0"))


def test_an_actor_that_no_registry_answers_begins_with_what_it_was_created_with(hive):
    import ray

    actors, registry = hive
    ray.kill(registry)
    actors.policy = to_builtins(RestartPolicy(start_deadline_s=0.01, failures_before_ready=1))
    ensure(actors, ONE)

    def failed():
        return asyncio.run(actors.ask("m-0", "row"))["why"] == "not healthy within 0.01 s"

    assert until(failed, PATIENCE_S)
