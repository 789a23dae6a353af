"""Fewer replicas than there are: those with the last numbers go, and never the one that serves for one that cannot."""

import asyncio
from dataclasses import replace

import pytest
from test_elsewhere import FAR, hive_of

from skep.errors import EngineError
from skep.supervisor.lifecycle import ReplicaState


def settings(replicas):
    return {"serve": [{"model": "m", "replicas": replicas}], "cluster": {"address": "auto"}}


def rebuilt(document, hive, _running):
    return replace(hive, replicas=tuple(replace(FAR, name=f"m-{n}") for n in range(document["serve"][0]["replicas"])))


def with_replicas(count, story, tmp_path):
    """`become` says in which state one of them is from now on."""

    async def run():
        launches = [replace(FAR, name=f"m-{n}") for n in range(count)]
        async with hive_of(tmp_path, *launches, rebuild=rebuilt) as (hive, until):
            await hive._control({"op": "reload", "settings": settings(count), "wait": True})

            def become(name, state):
                member = hive.replica_set.find(name)
                member.life.state = state
                member._changed()

            await story(hive, become, until)
            assert hive.phase == "ready"
            assert not hive._stop_asked.is_set()

    asyncio.run(run())


async def scale(hive, replicas):
    return await hive._control({"op": "scale", "model": "m", "replicas": replicas, "wait": True})


async def refused(hive, replicas, words):
    with pytest.raises(EngineError) as caught:
        await scale(hive, replicas)
    assert str(caught.value).endswith(words), str(caught.value)
    return caught.value.hint


def test_only_a_drained_one_is_not_left(tmp_path):
    async def story(hive, _become, _until):
        hive.replica_set.drain("a")
        hint = await refused(hive, 1, "`m` would be left without a replica that serves: m-0 is drained")
        assert hint == "the last ones go first; `skep undrain a` sends it requests again"
        assert hive.replica_set.names == ["m-0", "m-1"]
        shown = await hive._control({"op": "scale"})
        assert shown["models"] == [{"model": "m", "replicas": 2, "ready": 2}], "nothing has changed"
        hive.replica_set.undrain("a")
        hive.replica_set.drain("m-0")
        assert "`skep undrain m-0` sends" in await refused(hive, 1, "m-0 is drained")
        hive.replica_set.undrain("m-0")
        assert (await scale(hive, 1))["removed"] == ["m-1"]

    with_replicas(2, story, tmp_path)


def test_only_one_that_was_given_up_or_has_not_come_yet_is_not_left(tmp_path):
    async def story(hive, become, _until):
        become("m-0", ReplicaState.FAILED)
        assert "`skep restart m-0` starts it again" in await refused(hive, 1, "m-0 was given up")
        become("m-1", ReplicaState.STARTING)
        become("m-2", ReplicaState.FAILED)
        await refused(hive, 1, "m-0 was given up")
        become("m-0", ReplicaState.BACKOFF)
        become("m-2", ReplicaState.READY)
        assert "try again when it is ready" in await refused(hive, 2, "m-0 is in backoff, m-1 is starting")
        become("m-1", ReplicaState.READY)
        assert (await scale(hive, 2))["removed"] == ["m-2"], "one that serves is left"

    with_replicas(3, story, tmp_path)


def test_those_that_cannot_serve_may_go(tmp_path):
    async def story(hive, become, _until):
        hive.replica_set.drain("m-2")
        become("m-1", ReplicaState.FAILED)
        assert (await scale(hive, 1))["removed"] == ["m-1", "m-2"]

    with_replicas(3, story, tmp_path)


def test_a_hive_does_not_stop_when_what_is_left_is_given_up_while_another_one_goes(tmp_path):
    async def story(hive, become, until):
        answered = asyncio.Event()

        async def under_way(_name):
            return 0 if answered.is_set() else 1

        hive.replica_set.busy = under_way
        going = asyncio.ensure_future(scale(hive, 1))
        await until(lambda: hive.replica_set.state(hive.replica_set.find("m-1")) == "draining")
        become("m-0", ReplicaState.FAILED)
        answered.set()
        await going
        assert hive.replica_set.names == ["m-0"]

    with_replicas(2, story, tmp_path)


def test_who_rests_before_a_restart_is_not_drained(tmp_path):
    async def story(hive, _become, _until):
        crew, one = hive.replica_set, hive.replica_set.find("m-0")
        await crew.rest("m-0", 1.0)
        assert (crew.state(one), crew.is_drained(one)) == ("draining", False)
        for drain, back in [
            (lambda: crew.drain("m-0"), lambda: crew.undrain("m-0")),
            (lambda: crew.drain("a"), lambda: crew.undrain("a")),
        ]:
            drain()
            assert crew.is_drained(one)
            back()
            assert not crew.is_drained(one)

    with_replicas(1, story, tmp_path)
