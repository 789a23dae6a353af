"""The loop: what is due is probed, written and looked at; stopped or without a disk, it tells
nothing wrongly.
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from soak_month import VirtualLoop

from skep.errors import EngineError, StoreError
from skep.monitor.loop import LastSeen, Loop, events_since, hold_monitor_lock, last_seen
from skep.monitor.probe import machine_of
from skep.monitor.records import (
    EventKind,
    Heat,
    MonitorEvent,
    Probe,
    ProbeOutcome,
    ProbeSample,
    ProbeShape,
    ProbeTarget,
)
from skep.monitor.schedule import Moment
from skep.monitor.store import SeriesStore
from skep.paths import user_paths
from skep.store.database import open_store
from skep.testing.process import FakeEngine

NOON = 1_800_000_000.0
HOUR = 3600.0
ALL = (float("-inf"), float("inf"))
BOX = ProbeTarget("box", "http://127.0.0.1:1", every_s=HOUR, added_at=NOON)


class World:
    """Time that passes at once, a prober that takes `takes_s`, and what was said."""

    def __init__(self, series, *targets, watch=None):
        self.series = series
        self.watch = watch
        self.loop = VirtualLoop()
        self.began_at = NOON
        self.said = []
        self.log = []
        self.takes_s = 30.0
        self.versions = {"driver": "570"}
        self.fails = False
        self.model = None
        for target in targets:
            series.put_target(target)

    def moment(self):
        passed = self.loop.passed_s
        return Moment(self.began_at + passed, passed)

    async def probe(self, due):
        began = self.moment().wall
        self.log.append(("begin", due.target.name, began - NOON))
        await asyncio.sleep(self.takes_s)
        ended = self.moment().wall
        self.log.append(("end", due.target.name, ended - NOON))
        probe = Probe(
            due.target.name,
            due.era,
            due.slot,
            due.at,
            ended,
            ProbeOutcome.DONE,
            started_at=began,
            versions=self.versions,
            model=self.model,
        )
        if self.fails:
            return replace(
                probe, outcome=ProbeOutcome.FAILED, error_kind="connect", error="refused"
            ), []
        return probe, [ProbeSample(began, Heat.HOT, ProbeShape.SHORT, 1, tok_s=50.0)]

    def loop_of(self, series=None):
        async def in_loop(function, *arguments):
            return function(*arguments)

        return Loop(
            series or self.series,
            self.probe,
            say=self.said.append,
            watch=self.watch,
            moment=self.moment,
            look_for_changes=lambda *_: None,
            in_thread=in_loop,
            poll_s=60.0,
        )

    def run(self, seconds, series=None, meanwhile=None):
        async def for_a_while():
            watching = asyncio.ensure_future(self.loop_of(series).run())
            if meanwhile is not None:
                await meanwhile()
            await asyncio.sleep(seconds)
            watching.cancel()
            await asyncio.wait([watching])
            if not watching.cancelled():
                watching.result()

        self.loop.run_until_complete(for_a_while())

    def close(self):
        self.loop.close()


@pytest.fixture
def world(series):
    worlds = []

    def make(*targets, **options):
        worlds.append(World(series, *targets, **options))
        return worlds[-1]

    yield make
    for made_world in worlds:
        made_world.close()


def outcomes(series, name="box"):
    return [str(probe.outcome) for probe in reversed(series.probes(name, *ALL))]


def test_a_target_is_probed_at_once_and_every_hour(world, series):
    monitor = world(BOX)
    monitor.run(10 * HOUR)
    assert outcomes(series) == ["done"] * 10
    assert series.events(*ALL) == []


def test_targets_of_one_machine_are_probed_one_after_the_other(world):
    away = replace(BOX, name="away", url="http://10.0.0.7")
    monitor = world(BOX, replace(BOX, name="gateway", url="http://localhost:9"), away)
    monitor.run(100)
    on_machine = [entry[:2] for entry in monitor.log if entry[1] != "away"]
    assert on_machine == [
        ("begin", "box"),
        ("end", "box"),
        ("begin", "gateway"),
        ("end", "gateway"),
    ]
    assert [entry[2] for entry in monitor.log if entry[:2] == ("begin", "away")] == [0.0]
    urls = (
        "http://localhost:8400",
        "127.0.0.3:80",
        "http://[::1]:1/v1",
        "https://Api.Example/v1",
        "http://10.0.0.7",
    )
    assert [machine_of(url) for url in urls] == ["here", "here", "here", "api.example", "10.0.0.7"]


def test_targets_come_and_go_while_it_runs(world, series):
    monitor = world()

    async def change():
        await asyncio.sleep(60)
        series.put_target(BOX)
        await asyncio.sleep(600)
        series.remove_target("box", NOON + 660)

    monitor.run(5 * HOUR, meanwhile=change)
    assert outcomes(series) == ["done"]
    assert monitor.log[0][2] == pytest.approx(60, abs=61)


def test_a_probe_under_way_when_it_is_stopped_is_not_told_and_made_again(world, series):
    monitor = world(BOX)
    monitor.takes_s = 500.0
    monitor.run(100)
    assert outcomes(series) == []
    again = world()
    again.began_at = NOON + 200
    again.run(100)
    assert outcomes(series) == ["done"]


def test_what_was_missed_is_one_row(world, series):
    world(BOX, replace(BOX, name="other", url="http://10.0.0.9")).run(100)
    later = world()
    later.began_at = NOON + 5.9 * HOUR
    later.run(100)
    assert outcomes(series) == ["done", "missed", "done"]
    gap = series.probes("box", *ALL)[1]
    assert (gap.slots, gap.error) == (4, "the monitor was not running")


def test_a_prober_with_a_bug_or_a_past_that_cannot_be_read_does_not_end_the_watch(world, series):
    class Garbled(SeriesStore):
        def last_done(self, *_):
            raise ValueError("no JSON")

    async def broken(due):
        raise ZeroDivisionError(due.slot)

    first = world(BOX)
    first.run(2 * HOUR, series=Garbled(series.store))
    assert set(outcomes(series)) == {"done"}
    assert any("no JSON" in text for text in first.said)
    second = world(replace(BOX, name="other"))
    second.probe = broken
    second.run(2 * HOUR)
    assert len(outcomes(series, "other")) >= 2
    assert set(outcomes(series, "other")) == {"failed"}
    assert series.latest("other")[0].error.startswith("ZeroDivisionError")


class Watch:
    def __init__(self):
        self.after = []
        self.ticks = []

    async def after_probe(self, probe, now):
        self.after.append((probe.target, now))
        raise ValueError("a watch with a bug")

    async def tick(self, now):
        self.ticks.append(now - NOON)


def test_it_is_looked_at_after_each_probe_and_each_minute(world, series):
    watch = Watch()
    monitor = world(BOX, watch=watch)
    monitor.run(0.5 * HOUR)
    assert watch.after == [("box", NOON + 30)]
    assert 29 <= len(watch.ticks) <= 31
    assert any("a watch with a bug" in text for text in monitor.said)


def test_what_was_probed_by_hand_meanwhile_is_not_news_to_the_loop(world, series):
    monitor = world(BOX)

    async def by_hand():
        await asyncio.sleep(600)
        for place, driver in enumerate(("570", "580")):
            at = monitor.moment().wall + place
            probe = Probe(
                "box",
                -1,
                int(at),
                at,
                at,
                ProbeOutcome.DONE,
                started_at=at,
                versions={"driver": driver},
            )
            series.append_probe(probe)
        monitor.versions = {"driver": "580"}

    monitor.run(2 * HOUR, meanwhile=by_hand)
    assert len(outcomes(series)) >= 4
    assert [event for event in series.events(*ALL) if event.kind is EventKind.VERSION] == []


def test_down_up_upgrades_and_restarts_are_marked_once(world, series):
    monitor = world(BOX)
    monitor.run(100)
    for number, (fails, versions) in enumerate(
        [(True, {}), (True, {}), (False, {"driver": "580"}), (False, {"driver": "580"})], start=1
    ):
        later = world()
        later.began_at = NOON + number * HOUR + 400
        later.fails = fails
        later.versions = versions
        later.run(100)
    events = [
        (event.kind, event.text)
        for event in series.events(*ALL, "box")
        if event.target and event.at > NOON
    ]
    assert events == [
        (EventKind.DOWN, "down: refused"),
        (EventKind.UP, "up again"),
        (EventKind.VERSION, "driver changed from 570 to 580"),
    ]
    change = next(event for event in series.events(*ALL) if event.kind is EventKind.VERSION)
    assert {name: change.detail[name] for name in ("what", "from", "to")} == {
        "what": "driver",
        "from": "570",
        "to": "580",
    }


DONE = Probe("box", 0, 1, 1.0, 2.0, ProbeOutcome.DONE)
BUSY = replace(DONE, outcome=ProbeOutcome.FAILED, error_kind="busy")
DOWN = replace(BUSY, error_kind="connect")


def test_another_model_is_told_once(world, series):
    """By the name of its file, or by its id where no file is told; a file that is not told once is
    no other model.
    """
    world = world(BOX)
    for names in ("m a.gguf", "m m", "m a.gguf", "m b.gguf", "m m", "n n", "n n"):
        world.model, file = names.split()
        world.versions = {"model": file}
        world.run(HOUR)
    lines = [line for line in world.said if line.startswith("monitor.model")]
    assert lines == [
        (
            "monitor.model target='box' why='model changed from a.gguf to b.gguf; its series "
            "begin anew'"
        ),
        "monitor.model target='box' why='model changed from b.gguf to n; its series begin anew'",
    ]
    assert len(series.events(*ALL, "box")) == 2


@pytest.mark.parametrize(
    ("probes", "kinds"),
    [
        ((DONE, BUSY, DONE), []),
        ((DONE, DOWN, BUSY, DONE), [EventKind.DOWN, EventKind.UP]),
        ((BUSY, DOWN, DOWN), [EventKind.DOWN]),
    ],
)
def test_a_target_without_room_went_neither_down_nor_up(probes, kinds):
    last_seen = LastSeen()
    messages = []
    for probe in probes:
        messages += [event.kind for event in events_since(last_seen, probe)]
        last_seen.take(probe)
    assert messages == kinds


@pytest.mark.parametrize(
    ("before", "after", "anew"),
    [
        ({"process_began_at": 50.0}, {"process_began_at": 50.4}, False),
        ({"process_began_at": 50.0}, {"process_began_at": 800.0}, True),
        ({}, {"process_began_at": 800.0}, False),
    ],
)
def test_a_restart_is_told_by_the_process(before, after, anew):
    probe = Probe("box", 0, 1, NOON, NOON, ProbeOutcome.DONE, host=before)
    last_seen = LastSeen()
    last_seen.take(probe)
    news = events_since(last_seen, replace(probe, host=after))
    assert [event.kind for event in news] == ([EventKind.RESTART] if anew else [])


def test_a_model_that_was_swapped_during_a_long_outage_is_noticed(store):
    series = SeriesStore(store)
    at = NOON
    answers = [("a.gguf", ProbeOutcome.DONE), *((None, ProbeOutcome.FAILED),) * 51]
    for slot, (model, outcome) in enumerate(answers):
        versions = {"model": model} if model else {}
        series.append_probe(
            Probe("box", 0, slot, at + slot, at + slot, outcome, model="m", versions=versions)
        )
    before = last_seen(series, "box")
    now = Probe(
        "box", 0, 99, at + 99, at + 99, ProbeOutcome.DONE, model="m", versions={"model": "b.gguf"}
    )
    assert [event.kind for event in events_since(before, now)] == [EventKind.UP, EventKind.VERSION]


class FullDisk(SeriesStore):
    """Takes nothing while `full`."""

    full = True

    def append_probe(self, *values):
        if self.full:
            raise StoreError("cannot grow: no space left on its disk", hint="free some space")
        return super().append_probe(*values)


def test_while_the_disk_is_full_probes_are_missed_and_say_so(world, series):
    """What was under way is lost; from then on none is begun."""
    monitor = world(BOX)
    full = FullDisk(series.store)

    async def room():
        await asyncio.sleep(5 * HOUR)
        assert outcomes(series) == []
        full.full = False

    monitor.run(600, series=full, meanwhile=room)
    gap, done = reversed(series.probes("box", *ALL))
    assert (gap.error_kind, gap.slots, done.outcome) == ("disk", 5, ProbeOutcome.DONE)
    assert len([entry for entry in monitor.log if entry[0] == "begin"]) == 2
    assert [text.split()[0] for text in monitor.said if "waits" in text] == ["monitor.waits"]


def test_an_event_is_written_with_its_probe_or_not_at_all(series):
    """So that a kill between the two cannot have it told twice."""
    event = MonitorEvent(
        NOON,
        EventKind.DOWN,
        "down: refused",
        "box",
        {"since": NOON - HOUR, "error_kind": "connect"},
    )
    probe = Probe("box", 0, 1, NOON, NOON, ProbeOutcome.FAILED)
    for _ in range(2):
        series.append_probe(probe, (), [event])
    assert len(series.events(*ALL)) == 1
    assert len(series.probes("box", *ALL)) == 1


def test_a_second_one_is_told_who_holds_the_store(env):
    paths = user_paths(env)
    held = rf"already running \(pid {os.getpid()}\)"
    with (
        hold_monitor_lock(paths),
        pytest.raises(EngineError, match=held),
        hold_monitor_lock(paths),
    ):
        pass
    with hold_monitor_lock(paths):
        pass


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_store_that_is_taken_away_ends_the_loop_in_one_line(tmp_path, how):
    """What it would write from then on into the old file nobody would ever find."""
    path = tmp_path / "store.sqlite3"

    async def run(store):
        loop = Loop(SeriesStore(store), pytest.fail, say=lambda _line: None, poll_s=0.01)
        watching = asyncio.ensure_future(loop.run())
        await asyncio.sleep(0.03)
        path.unlink()
        if how == "replaced":
            path.write_bytes(b"")
        await asyncio.wait_for(watching, 10)

    with open_store(path) as store, pytest.raises(StoreError, match="deleted or replaced"):
        asyncio.run(run(store))


@pytest.mark.slow
def test_a_signal_ends_it_at_once_and_without_a_failed_probe(env, tmp_path):
    with FakeEngine(token_ms=1) as engine, open_store(user_paths(env).store) as store:
        series = SeriesStore(store)
        engine.fault(kind="hang-mid", after_tokens=2)
        series.put_target(ProbeTarget("box", engine.url, short_tokens=8, added_at=NOON))
        argv = [sys.executable, "-m", "skep", "monitor", "run"]
        with subprocess.Popen(
            argv, env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True
        ) as running:
            engine.wait_for(running=1)
            running.send_signal(signal.SIGTERM)
            _, errors = running.communicate(timeout=10)
        assert (running.returncode, "Traceback" in errors) == (0, False)
        assert outcomes(series) == []
