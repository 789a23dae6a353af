"""What other doors of a hive say counts: what they have in use is waited for, and what ends here is told to them."""

import asyncio
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from test_elsewhere import FAR, Aide, Far, far, hive_of

from skep.engines.control import ask_down
from skep.engines.lifecycle import RestartPolicy, State
from skep.engines.otherdoors import FRESH_S, SILENT_S, OtherDoors
from skep.errors import EngineError

SECOND = replace(FAR, name="m-1")
THERE = {"m": {"queued": 0, "busy": 1, "idle_s": None}}


def others(launch, changed):
    """One that another door keeps."""
    member = far(launch, changed)
    member.kept = False
    return member


def heeded(supervisor, *, drained=(), **busy):
    """Other doors that have heard of everything, and use these."""
    supervisor.doors.heed_s = 0.0
    supervisor.hear(THERE, drained, {name.replace("_", "-"): count for name, count in busy.items()})


def shown(supervisor, key):
    return {row["name"]: row[key] for row in supervisor.crew.table()["replicas"]}


async def goes_on(task):
    """It is looked a few times whether anybody is busy."""
    await asyncio.wait({task}, timeout=0.35)
    return not task.done()


def test_what_others_say_holds_for_a_while_and_is_from_before_at_first():
    now = [100.0]
    doors = OtherDoors(lambda: now[0])
    assert not doors.may_send(since=100.0), "there are none"
    assert doors.hear(THERE, ["m-0"], {"m-0": 2})
    assert not doors.hear(THERE, ["m-0"], {"m-0": 2, "m-1": 0}), "nothing new for a gateway"
    assert (doors.busy("m-0"), doors.busy("m-1"), doors.figures) == (2, 0, THERE)
    assert doors.may_send(since=100.0)
    now[0] = 103.0
    doors.hear(THERE, (), {})
    assert doors.may_send(since=100.1)
    assert not doors.may_send(since=100.0)
    now[0] += FRESH_S + 1
    assert doors.figures == {}, "what waited there long ago calls no replicas"
    doors.hear({}, (), {})
    assert not doors.may_send(since=now[0])


def test_a_replica_that_goes_is_closed_at_all_doors_until_it_is_gone(tmp_path):
    """A guest's answers were cut by each scale-down: only the owner's own were waited for."""

    async def run():
        async with hive_of(tmp_path, FAR, SECOND) as (supervisor, until):
            told = []
            member = supervisor.crew.find("m-0")
            member._changed = lambda: told.append((member.life.state, supervisor.drained))
            heeded(supervisor, m_0=1)
            going = asyncio.ensure_future(supervisor.crew.send_off("m-0", 5.0))
            await until(lambda: supervisor.drained == {"m-0"})
            assert await goes_on(going), "the other door has one under way"
            supervisor.hear(THERE)
            await going
            assert told == [(State.STOPPING, {"m-0"}), (State.STOPPED, {"m-0"})]
            assert supervisor.drained == frozenset()
            supervisor.hear({})

    asyncio.run(run())


def test_a_door_that_cannot_have_heard_yet_may_send(tmp_path):
    async def run():
        async with hive_of(tmp_path, FAR) as (supervisor, _):
            supervisor.hear(THERE)
            resting = asyncio.ensure_future(supervisor.crew.rest("m-0", 5.0))
            assert await goes_on(resting)
            supervisor.hear({})
            await resting

    asyncio.run(run())


def test_a_drain_waits_for_the_answers_of_all_doors(tmp_path):
    async def run():
        async with hive_of(tmp_path, FAR, SECOND) as (supervisor, _):
            heeded(supervisor, m_0=2)
            assert (await supervisor._control({"op": "drain", "name": "a"}))["busy"] == 2
            assert supervisor.drained == {"a"}
            drained = asyncio.ensure_future(supervisor._control({"op": "drain", "name": "m-0", "wait": True}))
            assert await goes_on(drained)
            heeded(supervisor, m_1=1)
            assert (await drained)["busy"] == 0
            supervisor.hear({})

    asyncio.run(run())


def test_a_drain_ends_with_a_word_where_the_other_doors_are_not_heard(tmp_path):
    """The head was lost: what they have in use stayed as they had said last, and the drain waited for ever."""

    async def run():
        async with hive_of(tmp_path, FAR) as (supervisor, _):
            heeded(supervisor, m_0=1)
            now = time.monotonic
            drained = asyncio.ensure_future(supervisor._control({"op": "drain", "name": "m-0", "wait": True}))
            assert await goes_on(drained)
            supervisor.doors._now = lambda: now() + SILENT_S
            with pytest.raises(EngineError, match="`m-0` is empty here; of the other doors nothing is heard"):
                await drained
            assert supervisor.drained == {"m-0"}, "it gets nothing new all the same"
            supervisor.hear({})

    asyncio.run(asyncio.wait_for(run(), 10))


def test_down_closes_all_at_all_doors_and_waits_for_their_answers(tmp_path):
    async def run():
        async with hive_of(tmp_path, FAR, SECOND) as (supervisor, until):
            heeded(supervisor, m_1=1)
            supervisor.stop()
            await until(lambda: supervisor.drained == {"m-0", "m-1"})
            await asyncio.sleep(0.3)
            assert supervisor.crew.find("m-1").life.serving, "another door has an answer under way"
            supervisor.hear(THERE)

    asyncio.run(run())


def test_down_does_not_wait_for_others_longer_than_for_its_own(tmp_path):
    async def run():
        async with hive_of(tmp_path, FAR) as (supervisor, _):
            heeded(supervisor, m_0=1)
            supervisor.stop(0.2)

    asyncio.run(asyncio.wait_for(run(), 10))


def test_a_guest_that_lets_go_or_stops_tells_nobody_and_waits_for_nobody(tmp_path):
    async def run():
        async with hive_of(tmp_path, elsewhere=others) as (supervisor, until):
            await supervisor.adopt([FAR, SECOND])
            await until(lambda: all(member.life.serving for member in supervisor.crew.members))
            supervisor.hear(THERE, (), {"m-0": 3, "m-1": 3})
            said = []
            await supervisor.adopt([SECOND])
            await until(lambda: said.append(supervisor.drained) or supervisor.crew.names == ["m-1"])
            supervisor.crew.drain("m-1")
            assert supervisor.drained == {"m-1"}, "what its user drains is drained at all"
            supervisor.crew.undrain("m-1")
            supervisor.stop()
            await until(lambda: said.append(supervisor.drained) or not supervisor.crew.find("m-1").life.serving)
            assert set(said) == {frozenset()}

    asyncio.run(run())


class Failed(Far):
    kept = False

    async def run(self):
        self.life.state, self.life.why = State.FAILED, "no"
        self._changed()
        await self._stopping.wait()


def test_a_guest_neither_waits_for_nor_fails_with_replicas_of_another_door(tmp_path):
    async def run():
        async with hive_of(tmp_path, FAR, SECOND, elsewhere=Failed) as (supervisor, _):
            assert supervisor.phase == "ready"
            supervisor._changed()
            assert not supervisor._stop_asked.is_set()

    asyncio.run(run())


def test_the_gateway_is_told_how_many_slots_are_busy_for_others(tmp_path):
    async def run():
        async with hive_of(tmp_path, FAR, SECOND) as (supervisor, _):
            assert shown(supervisor, "others") == {"m-0": 0, "m-1": 0}
            supervisor.hear(THERE, ["b"], {"m-0": 3})
            assert shown(supervisor, "others") == {"m-0": 3, "m-1": 0}
            assert shown(supervisor, "draining") == {"m-0": False, "m-1": True}
            supervisor.hear({})
            assert shown(supervisor, "others") == {"m-0": 0, "m-1": 0}
            assert not any(shown(supervisor, "draining").values())

    asyncio.run(run())


def test_what_another_door_drained_is_taken_back_there(tmp_path):
    async def run():
        async with hive_of(tmp_path, FAR, SECOND) as (supervisor, _):
            supervisor.crew.drain("m-0")
            supervisor.hear(THERE, ["m-0", "b", "z"], {})
            for name, why in {
                "m-0": "`m-0` is drained at another door too",
                "m-1": "`m-1` stands on node `b`, which is drained at another door",
                "b": "`b` is drained at another door",
                "z": "`z` is drained at another door",
            }.items():
                with pytest.raises(EngineError) as caught:
                    await supervisor._control({"op": "undrain", "name": name})
                assert caught.value.message == why
            assert not supervisor.drained
            supervisor.hear({})
            assert await supervisor._control({"op": "undrain", "name": "m-0"}) == {"ok": True, "replicas": ["m-0"]}

    asyncio.run(run())


class Deaf(Far):
    def restart(self):
        raise EngineError("`m-0` cannot be started anew: the cluster does not answer")


def test_one_that_cannot_be_told_to_restart_is_let_in_again(tmp_path):
    async def run():
        async with hive_of(tmp_path, FAR, elsewhere=Deaf) as (supervisor, _):
            with pytest.raises(EngineError, match="cannot be started anew"):
                await supervisor._control({"op": "restart", "name": "m-0"})
            assert shown(supervisor, "draining") == {"m-0": False}
            assert not supervisor.drained

    asyncio.run(run())


def test_one_that_was_restarted_in_a_moment_is_let_in_again(tmp_path):
    """What is told of a replica elsewhere may leave out that it did not serve for a while."""

    async def run():
        async with hive_of(tmp_path, FAR) as (supervisor, _):
            await supervisor._control({"op": "restart", "name": "m-0"})
            member = supervisor.crew.find("m-0")
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
        async with hive_of(tmp_path, FAR, aides=[aide()], control=path) as (supervisor, until):
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
        for aides, stop_s in (((), 15.0), ([Aide()], 75.0)):
            async with hive_of(tmp_path, FAR, aides=aides) as (supervisor, _):
                told = await supervisor._control({"op": "down", "drain_s": 0.0})
                assert (told["drain_s"], told["stop_s"]) == (0.0, stop_s)

    asyncio.run(run())


def test_a_reload_tells_who_keeps_replicas_elsewhere_the_new_restart_policy(tmp_path):
    policy = RestartPolicy(start_deadline_s=7.0, fallbacks=3)

    async def run():
        aide = Aide()
        async with hive_of(
            tmp_path, FAR, aides=[aide], rebuild=lambda _document, hive, _running: replace(hive, policy=policy)
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
