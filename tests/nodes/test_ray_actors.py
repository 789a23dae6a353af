"""Posts on a real cluster, without a gateway: those that are over, cancelled, failed, and nodes that come back."""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from dataclasses import asdict, replace

import pytest
from clusters import until, worker_of

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
    """This process as a driver; posts and places of the hive are gone with the cluster."""
    import ray

    from skep.cluster.actor_manager import ActorManager
    from skep.cluster.connect import join
    from skep.cluster.registry_actor import make_registry

    nodes.add("b")
    nodes.add("c")
    join(nodes.address)
    try:
        yield ActorManager("h", "key", {}), make_registry("h")
    finally:
        ray.shutdown()


class Words(list):
    def say(self, *words):
        self.append(words)


def rows(ledger):
    """Empty while the ledger is moved to another node."""
    import ray

    try:
        return ray.get(ledger.state.remote(), timeout=20.0)["rows"]
    except ray.exceptions.RayActorError:
        return {}


def row_when(ledger, state, name="m-0", **more):
    """Of a post, as soon as the ledger has heard that it is so."""

    def found():
        row = rows(ledger).get(name)
        right = row and row["state"] == state and all(row[key] == value for key, value in more.items())
        return row if right else None

    row = until(found, PATIENCE_S)
    assert row, rows(ledger)
    return row


def ensure(stations, launch, said=None, avoid=()):
    heard = Words() if said is None else said
    stations.avoid = avoid
    asyncio.run(stations.ensure(launch, {}, heard.say))


def test_a_post_that_is_over_gives_way_to_a_new_one(hive):
    """An engine that was ended while the head was lost: its actor and its place are still there."""
    stations, ledger = hive
    ensure(stations, ONE)
    before = row_when(ledger, "ready")
    ensure(stations, ONE)
    assert row_when(ledger, "ready")["incarnation"] == before["incarnation"], "one that stands is left alone"
    asyncio.run(stations.end("m-0", headless=True))
    assert stations.all_names() == ["m-0"]
    ensure(stations, ONE)
    assert until(lambda: rows(ledger)["m-0"]["incarnation"] != before["incarnation"], PATIENCE_S)
    assert row_when(ledger, "ready")["pid"] != before["pid"]
    asyncio.run(stations.end("m-0"))
    assert stations.all_names() == []


def test_a_cancelled_one_leaves_no_place_behind_that_would_take_what_comes_free(hive):
    stations, _ = hive
    large = replace(ONE, place=PlacementRequest(cpus=64.0))

    async def play(wait_s):
        said = Words()
        making = asyncio.create_task(stations.ensure(large, {}, said.say))
        await asyncio.wait({making}, timeout=wait_s)
        making.cancel()
        await asyncio.wait({making})
        assert making.cancelled()
        return said

    assert "waits for room: needs 64 CPUs on one node; " in asyncio.run(play(4.0))[-1][1]
    assert stations.all_names() == []
    for wait_s in (0.0, 0.002, 0.01, 0.05):  # in the middle of making it
        asyncio.run(play(wait_s))
        assert stations.all_names() == []


def test_nodes_that_are_avoided_get_nothing_until_they_are_not(hive):
    stations, ledger = hive
    for number in range(2):
        ensure(stations, replace(ONE, name=f"m-{number}"), avoid=("b", "head"))
        row_when(ledger, "ready", f"m-{number}", node="c")
    said = Words()

    async def play():
        stations.avoid = ("b",)
        full = asyncio.create_task(stations.ensure(replace(ONE, name="m-2"), {}, said.say))
        while not any("waits for room" in (why or "") for _, why in said):
            await asyncio.sleep(0.1)
        stations.avoid = ()
        await full

    asyncio.run(asyncio.wait_for(play(), PATIENCE_S))
    assert row_when(ledger, "ready", "m-2")["node"] == "b"


def test_nodes_that_are_shunned_are_taken_when_only_they_have_room(hive):
    """Both are full: it waits for the other one, and goes to whichever has room first."""
    stations, ledger = hive
    wide = replace(ONE, place=PlacementRequest(cpus=2.0, shunned=("b",)))
    for name, node in (("m-0", "c"), ("m-1", "b")):
        ensure(stations, replace(wide, name=name), avoid=("head",))
        row_when(ledger, "ready", name, node=node)
    said = Words()

    async def play():
        third = asyncio.create_task(stations.ensure(replace(wide, name="m-2"), {}, said.say))
        while not any("waits for room" in (why or "") for _, why in said):
            await asyncio.sleep(0.1)
        await stations.end("m-1")
        await third

    asyncio.run(asyncio.wait_for(play(), PATIENCE_S))
    row_when(ledger, "ready", "m-2", node="b")


def test_a_node_that_was_started_anew_gets_its_replica_back(nodes, hive):
    """It has another id, and the place of the replica names the old one."""
    import ray

    stations, ledger = hive
    bound = replace(ONE, place=PlacementRequest(cpus=1.0, nodes=("b",)))
    ensure(stations, bound)
    before = row_when(ledger, "ready", node="b")
    nodes.kill("b")
    assert until(lambda: not any(node["Alive"] and node["NodeName"] == "b" for node in ray.nodes()), PATIENCE_S)
    nodes.add("b")

    def again():
        ensure(stations, bound)
        return rows(ledger).get("m-0", before)["node_id"] != before["node_id"]

    assert until(again, PATIENCE_S, every_s=2.0), rows(ledger)
    assert row_when(ledger, "ready", node="b")["incarnation"] != before["incarnation"]


def test_what_failed_before_its_engine_was_made_is_tried_again(nodes, hive, tmp_path):
    """And what a killed keeper left behind on the node is gone before the engine starts."""
    stations, ledger = hive
    weights = tmp_path / "weights"
    ensure(stations, replace(ONE, checkpoint=str(weights)))
    assert "does not exist on this node" in row_when(ledger, "failed")["why"]
    mark = f"{user_paths(os.environ).logs / 'posts' / f'h@{nodes.address}'}:m-0;"
    with subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: mark}) as left:
        weights.mkdir()
        asyncio.run(stations.ask("m-0", "restart"))
        row_when(ledger, "ready")
        assert left.wait(10.0) == -9


def test_a_pull_that_failed_is_tried_again_by_itself(hive):
    stations, ledger = hive
    missing = PlacementRequest(cpus=1.0, source="/no/such/file.gguf")
    ensure(stations, replace(ONE, place=missing))
    assert "next attempt in 5 s" in row_when(ledger, "backoff")["why"]
    assert "next attempt in 10 s" in until(
        lambda: (why := rows(ledger)["m-0"]["why"]) and "after 10 s" in why and why, PATIENCE_S
    )
    began = time.monotonic()
    asyncio.run(stations.end("m-0"))
    assert time.monotonic() - began < 10.0, "nobody waits for it"


def test_posts_go_on_telling_a_ledger_they_know_without_a_head(nodes, hive):
    stations, ledger = hive
    ensure(stations, ONE)
    row_when(ledger, "ready")
    nodes.kill_gcs()
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        assert rows(ledger)["m-0"]["state"] == "ready"
        time.sleep(0.5)
    assert asyncio.run(stations.ask("m-0", "describe"))["name"] == "m-0"
    asyncio.run(stations.end("m-0", headless=True))


def test_a_post_that_ray_cannot_make_is_told_as_failed(hive):
    stations, _ = hive
    said = Words()
    stations.policy = {"no_such_setting": 1}
    ensure(stations, ONE, said)
    assert said[-1][0] == "failed"
    assert "no_such_setting" in said[-1][1]


def test_a_post_heeds_the_restart_policy_of_now_also_when_ray_has_started_it_anew(hive):
    """Its engine goes on meanwhile, as on one box."""
    import ray

    stations, ledger = hive
    ensure(stations, ONE)
    before = row_when(ledger, "ready")
    hasty = asdict(RestartPolicy(start_deadline_s=0.01, failures_before_ready=1))
    ray.get(ledger.claim.remote("gateway", hasty))
    until(lambda: False, 2 * ANNOUNCE_EVERY_S)  # it hears of it with its next announcement
    assert row_when(ledger, "ready")["pid"] == before["pid"]
    os.kill(worker_of(before["pid"]), signal.SIGKILL)
    row = row_when(ledger, "failed")
    assert (row["why"], row["incarnation"] != before["incarnation"]) == ("not healthy within 0.01 s", True)
    ray.get(ledger.claim.remote("gateway", asdict(RestartPolicy())))

    def again():
        """It hears of it with its next announcement, and then has the time to start."""
        asyncio.run(stations.ask("m-0", "restart"))
        return until(lambda: rows(ledger)["m-0"]["state"] == "ready", 5.0)

    assert until(again, PATIENCE_S), rows(ledger)


def test_a_ledger_that_was_started_anew_is_not_taken_in_by_a_post_of_before(hive):
    """A node comes back with a post that Ray has started elsewhere meanwhile: that one goes on."""
    import ray

    stations, ledger = hive
    ensure(stations, ONE)
    before = row_when(ledger, "ready", life=0)
    os.kill(worker_of(before["pid"]), signal.SIGKILL)
    row_when(ledger, "ready", life=1, actor=before["actor"])
    ray.kill(ledger, no_restart=False)

    def told(row):
        with contextlib.suppress(ray.exceptions.RayActorError):
            return ray.get(ledger.announce.remote("m-0", row))

    assert until(lambda: told(before), PATIENCE_S)["end"] in (True, False), "it may have spoken first"
    now = row_when(ledger, "ready", life=1)
    assert told(before)["end"] is True
    stranger = {**now, "incarnation": "stranger", "actor": "f" * len(now["actor"]), "life": 7}
    assert told(stranger)["end"] is True, "of two actors, the one that has the name"
    assert row_when(ledger, "ready")["incarnation"] == now["incarnation"]
    asyncio.run(stations.end("m-0"))


def test_a_post_that_no_ledger_answers_begins_with_what_it_was_created_with(hive):
    import ray

    stations, ledger = hive
    ray.kill(ledger)
    stations.policy = asdict(RestartPolicy(start_deadline_s=0.01, failures_before_ready=1))
    ensure(stations, ONE)

    def failed():
        return asyncio.run(stations.ask("m-0", "row"))["why"] == "not healthy within 0.01 s"

    assert until(failed, PATIENCE_S)
