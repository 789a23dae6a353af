"""A hive whose replicas stand elsewhere: restarts that may not be heard, what is left behind, what a reload changes."""

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from test_elsewhere import FAR, Aide, Far, hive_of

from skep.errors import EngineError
from skep.supervisor.control import ask_down
from skep.supervisor.lifecycle import RestartPolicy


def shown(supervisor, key):
    return {row["name"]: row[key] for row in supervisor.replica_set.table(supervisor.replica_set.views())["replicas"]}


class Deaf(Far):
    def restart(self):
        raise EngineError("`m-0` cannot be started anew: the cluster does not answer")


def test_one_that_cannot_be_told_to_restart_is_let_in_again(tmp_path):
    async def run():
        async with hive_of(tmp_path, FAR, elsewhere=Deaf) as (supervisor, _):
            with pytest.raises(EngineError, match="cannot be started anew"):
                await supervisor._control({"op": "restart", "name": "m-0"})
            assert shown(supervisor, "draining") == {"m-0": False}

    asyncio.run(run())


def test_one_that_was_restarted_in_a_moment_is_let_in_again(tmp_path):
    """What is told of a replica elsewhere may leave out that it did not serve for a while."""

    async def run():
        async with hive_of(tmp_path, FAR) as (supervisor, _):
            await supervisor._control({"op": "restart", "name": "m-0"})
            member = supervisor.replica_set.find("m-0")
            member._changed()
            assert (member.restarted, shown(supervisor, "draining")) == (1, {"m-0": True})
            member.life.restarts += 1
            member._changed()
            assert shown(supervisor, "draining") == {"m-0": False}

    asyncio.run(run())


LEFT = "the cluster does not answer: its replicas end by themselves within 60 s"


class Leaving(Aide):
    async def stop(self):
        return LEFT


@pytest.mark.parametrize(("aide", "left"), [(Aide, []), (Leaving, [LEFT])])
def test_who_stops_it_hears_what_could_not_be_ended(tmp_path, aide, left):
    async def run():
        path = tmp_path / "control"
        async with hive_of(tmp_path, FAR, services=[aide()], control=path) as (supervisor, until):
            onlooker, looking = await asyncio.open_unix_connection(path)
            looking.write(b'{"op": "status"}\n')
            assert json.loads(await onlooker.readline())["phase"] == "ready"
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b'{"op": "down", "drain_s": 0}\n')
            await until(lambda: supervisor.phase == "stopping")
        told = [json.loads(line) for line in (await reader.read()).splitlines()]
        assert (told[0]["ok"], told[1:]) == (True, [{"left_behind": left}])
        assert await onlooker.read() == b"", "who asked for something else hears nothing"
        for end in (looking, writer):
            end.close()

    asyncio.run(run())


@pytest.mark.parametrize(("last", "left"), [(b'{"left_behind": ["x"]}\n', ["x"]), (b"", []), (b'{"left', [])])
def test_the_last_words_may_come_with_the_answer_or_not_at_all(tmp_path, last, left):
    told = {"ok": True, "pid": 2**30, "drain_s": 0.0, "stop_s": 5.0}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "control"))
        listener.listen()

        def answer():
            with listener.accept()[0] as asked:
                asked.recv(1000)
                asked.sendall(json.dumps(told).encode() + b"\n" + last)

        with ThreadPoolExecutor() as beside:
            beside.submit(answer)
            assert ask_down(tmp_path / "control") == left


def test_ending_may_take_longer_where_replicas_stand_elsewhere(tmp_path):
    async def run():
        for services, stop_s in (((), 15.0), ([Aide()], 75.0)):
            async with hive_of(tmp_path, FAR, services=services) as (supervisor, _):
                told = await supervisor._control({"op": "down", "drain_s": 0.0})
                assert (told["drain_s"], told["stop_s"]) == (0.0, stop_s)

    asyncio.run(run())


def test_a_reload_tells_who_keeps_replicas_elsewhere_the_new_restart_policy(tmp_path):
    policy = RestartPolicy(start_deadline_s=7.0, fallbacks=3)

    async def run():
        aide = Aide()
        async with hive_of(
            tmp_path, FAR, services=[aide], rebuild=lambda _document, hive, _running: replace(hive, policy=policy)
        ) as (supervisor, _):
            told = await supervisor._control({"op": "reload", "settings": {}, "wait": True})
            assert (told["left_out"], told["unchanged"]) == ([], ["m-0"])
            assert aide.policy == supervisor.hive.policy == policy

    asyncio.run(run())


def test_a_reload_says_that_the_memory_that_was_taken_elsewhere_stays_as_much(tmp_path):
    """Its engine goes on, as on one box; only another place would have more of it."""
    roomier = replace(FAR, place=replace(FAR.place, memory_bytes=1 << 30))

    def rebuild(_document, hive, _running):
        return replace(hive, replicas=(roomier,), left_out=())

    async def run():
        async with hive_of(tmp_path, FAR, rebuild=rebuild) as (supervisor, _):
            for left_out in (["room"], []):
                told = await supervisor._control({"op": "reload", "settings": {}, "wait": True})
                assert (told["left_out"], told["changed"]) == (left_out, [])

    asyncio.run(run())
