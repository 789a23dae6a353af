"""What a change of a hive on unlike nodes is given: which of them are drained, and who stands on which kind."""

import asyncio
from dataclasses import replace

from test_elsewhere import FAR, hive_of

from skep.errors import DoesNotFit


def test_a_change_is_told_the_nodes_that_are_drained(tmp_path):
    """Their room was counted: a replica was said to start, and waited for ever."""
    told = []

    def rebuild(_document, hive, _running):
        told.append(hive.avoid)
        return hive

    async def run():
        async with hive_of(tmp_path, FAR, replace(FAR, name="m-1"), rebuild=rebuild) as (supervisor, _):
            supervisor.replica_set.drain("a")
            supervisor.replica_set.drain("b")
            for _ in range(2):
                await supervisor._control({"op": "reload", "settings": {}, "wait": True})
                supervisor.replica_set.undrain("a")
            assert told == [{"a", "b"}, {"b"}]

    asyncio.run(run())


def test_more_replicas_go_to_the_next_kind_where_the_first_one_is_full(tmp_path):
    table = {"model": "m", "replicas": 0}
    asked = {"serve": [{**table, "kind": "large", "replicas": 1}, {**table, "kind": "small"}]}
    seen = []

    def rebuild(document, hive, _running):
        large, small = (one["replicas"] for one in document["serve"])
        seen.append((large, small))
        if large > 1:
            raise DoesNotFit("the large one is full")
        return replace(hive, replicas=tuple(replace(FAR, name=f"m-{n}") for n in range(large + small)))

    async def run():
        async with hive_of(tmp_path, FAR, rebuild=rebuild) as (supervisor, _):
            await supervisor._control({"op": "reload", "settings": asked, "wait": True})
            told = await supervisor._control({"op": "scale", "model": "m", "replicas": 2, "wait": True})
            assert (told["added"], told["unchanged"]) == (["m-1"], ["m-0"])
            assert seen == [(1, 0), (2, 0), (1, 1)]

    asyncio.run(run())
