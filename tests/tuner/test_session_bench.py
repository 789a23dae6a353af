"""Sessions held at real processes: what is sent, what counts, and what is told of them."""

import asyncio
from contextlib import contextmanager

import pytest
from msgspec.structs import replace
from trial_presets import PLAIN, pids_of, preset_of, with_words

from commands import environment
from embedded_process import weights
from power_smi import changes_of, write_smi
from skep.catalog.presets import EngineOptions, Preset
from skep.catalog.session_shapes import Varying, find_shape
from skep.host.facts import NvidiaReport, read_host
from skep.host.power import DriverNvml, GpuSample, NvmlGpu, PowerMeter
from skep.paths import user_paths
from skep.store.database import open_store
from skep.store.records import Request
from skep.tuner.measure import MeasureTimeouts
from skep.tuner.power_knob import cheap_limit_words
from skep.tuner.power_limits import PowerLimits
from skep.tuner.records import (
    KnobChange,
    KnobConfig,
    MeasureRequest,
    SessionAim,
    SessionReading,
    StageDecision,
    TuneGoal,
    TuneStage,
)
from skep.tuner.session_bench import SessionBench, SessionRun
from skep.tuner.trial_server import TrialServers
from skep.units import Interval

# A tiny cut of the shape: prompts of some hundred tokens, pauses of milliseconds.
TINY = replace(
    find_shape("small"),
    shared_tokens=200,
    first_tokens=Varying(100, 150),
    growth_tokens=Varying(40, 80),
    output_tokens=Varying(4, 8),
    pause_s=Varying(0.01, 0.02),
    summary_tokens=50,
)
AIM = TuneGoal("turns_min", 3, sessions=SessionAim("small", 4096, turns=2), slo="ttft=10s")
FASTER = PLAIN.turned({"ms": 1.0})


@contextmanager
def bench_in(folder, env, shape=TINY, make_preset=preset_of, **options):
    """Yield a bench of sessions; nothing of it runs afterwards."""
    paths = user_paths(env)
    timeouts = MeasureTimeouts(hang_s=60.0)
    with open_store(paths.store) as store:
        servers = TrialServers(paths, folder / "work")
        host = read_host(NvidiaReport())
        yield SessionBench(
            servers,
            store,
            host,
            "t-1",
            AIM,
            7,
            make_preset,
            timeouts=timeouts,
            shape=shape,
            **options,
        )
    assert not pids_of(str(folder / "work")), "something was left running"


def measured(bench, configs, readings=2, events=None):
    request = MeasureRequest(tuple(configs), readings, "screen", "a trial")
    on_progress = (lambda _: None) if events is None else events.append
    return asyncio.run(bench.measure(request, on_progress)).starts


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Both sides of one round, their stored requests and what was told meanwhile."""
    folder = tmp_path_factory.mktemp("both")
    events = []
    with bench_in(folder, environment(folder)) as bench:
        starts = measured(bench, (PLAIN, FASTER), 2, events)
        rows = [bench.store.requests(start.run_id) for start in starts]
        yield starts, rows, events


def test_a_reading_is_a_few_turns_of_each_session(both):
    starts, _, _ = both
    for start in starts:
        assert start.failure is None
        assert [reading.requests for reading in start.readings] == [6, 6]
        assert all(reading.counts and reading.figure > 60 for reading in start.readings)


def test_beside_turns_a_minute_stand_session_time_and_first_tokens(both):
    reading = both[0][0].readings[0]
    sessions = reading.sessions
    assert 0 < sessions.first_p50_ms <= sessions.first_p95_ms < 5_000
    # 16 turns of a session at the pace of three sessions at once
    assert sessions.session_s == pytest.approx(60 * 3 * 16 / reading.figure, rel=0.5)
    assert sessions.mean_w is None
    assert reading.over_limit < 1


def test_both_sides_get_the_same_turns(both):
    _, stored, _ = both
    slow, fast = (
        {(row.session, row.turn): row.output_tokens for row in rows if row.level}
        for rows in stored
    )
    shared = slow.keys() & fast.keys()
    assert len(shared) >= 8
    assert all(slow[turn] == fast[turn] for turn in shared)


def test_what_sessions_hold_from_before_is_sent_and_not_measured(both):
    rows = both[1][0]
    before = [row for row in rows if row.turn == 0]
    assert {row.level for row in before} == {0}
    assert {row.session for row in before} == {0, 1, 2}
    last_s = max(row.ended_s for row in before)
    assert all(row.started_s >= last_s for row in rows if row.level)


def test_who_watches_is_told_which_reading_is_under_way(both):
    activities = [(event.activity, event.reading) for event in both[2]]
    assert ("warming up", 0) in activities
    assert ("measuring", 2) in activities


def test_hits_are_told_where_the_engine_tells_them(env, tmp_path):
    with bench_in(tmp_path, env) as bench:
        (start,) = measured(bench, (with_words("--prefix-cache", "told"),), 1)
    assert 0.5 < start.readings[0].sessions.hit_rate < 1


def test_one_that_dies_under_sessions_fails_with_its_cause(env, tmp_path):
    dying = with_words("--fault", '{"kind": "crash", "times": null, "after_tokens": 12}')
    talkative = replace(TINY, output_tokens=Varying(20, 24))
    with bench_in(tmp_path, env, talkative) as bench:
        (start,) = measured(bench, (dying,), 1)
    assert start.failure.kind == "crash-under-load"
    assert start.readings == ()


class SteadyCard(DriverNvml):
    """A card that draws 250 W whatever is done."""

    def __init__(self):
        super().__init__(None)

    def sample(self, _index):
        return GpuSample(power_w=250.0)


def test_watts_stand_beside_turns_a_minute_where_a_meter_reads(env, tmp_path):
    meter = PowerMeter(SteadyCard(), [NvmlGpu(0, "GPU-0", "a card")])
    with bench_in(tmp_path, env, meter=meter) as bench:
        (start,) = measured(bench, (PLAIN,), 1)
    assert start.readings[0].sessions.mean_w == pytest.approx(250.0)


def answered(session, turn, ended_s, **fields):
    begun_s = ended_s - 1.0
    times = {"started_s": begun_s, "first_token_s": begun_s + 0.5, "last_token_s": ended_s}
    return Request(
        2, 0, turn, "session", **times, ended_s=ended_s, session=session, turn=turn, **fields
    )


def test_turns_a_minute_are_those_of_all_over_the_time_since_the_reading_before():
    run = SessionRun(TINY, 2, 1, opened_s=10.0)
    rows = [answered(0, 1, 12.0), answered(0, 2, 14.0), answered(1, 1, 20.0), answered(0, 3, 22.0)]
    assert run.reading(rows, 0, limited=False).figure == 2 * 60 / 4
    assert run.reading(rows, 1, limited=False).figure == 2 * 60 / 8


def test_a_reading_after_a_failed_turn_or_with_too_few_does_not_count():
    run = SessionRun(TINY, 2, 1, opened_s=10.0)
    rows = [answered(0, 1, 12.0), answered(1, 1, 14.0, error_kind="reset"), answered(0, 2, 16.0)]
    assert not run.reading(rows, 0, limited=False).counts
    assert not run.reading(rows[:1], 0, limited=False).counts


def embedded_preset(config):
    """The real engine with the smallest model."""
    return Preset(
        name="trial",
        title="a trial",
        engine="embedded",
        model="smollm2-135m",
        checkpoint=str(weights()),
        served_as="smollm2-135m",
        hardware="cpu",
        source="this test",
        slots=int(config["slots"]),
        context_tokens=2048,
        threads=2,
        options=EngineOptions(kv_ram=int(config["kv_ram"])),
    )


@pytest.mark.engine
@pytest.mark.slow
def test_kv_in_ram_gives_a_real_engine_the_hits_that_its_slots_have_lost(env, tmp_path):
    """Three sessions in one slot push each other out."""
    on_slot = KnobConfig.of({"slots": 1, "kv_ram": 0})
    in_ram = on_slot.turned({"kv_ram": 1})
    shape = replace(TINY, shared_tokens=64, growth_tokens=Varying(20, 30), turns=Varying(4, 6))
    with bench_in(tmp_path, env, shape, embedded_preset) as bench:
        lost, held = measured(bench, (on_slot, in_ram), 1)
    assert held.readings[0].sessions.hit_rate > lost.readings[0].sessions.hit_rate + 0.1


def test_the_power_limit_of_a_configuration_is_set_before_it_starts(env, tmp_path, monkeypatch):
    write_smi(tmp_path, limits=(350,))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    limits = PowerLimits((0,), tmp_path / "power-limits.json")
    low = PLAIN.turned({"power_limit": 245})
    with bench_in(tmp_path, env, power_limits=limits) as bench:
        measured(bench, (low, PLAIN.turned({"power_limit": 350})), 1)
    assert changes_of(tmp_path) == ["-i 0 -pl 245", "-i 0 -pl 350"]
    assert (tmp_path / "power-limits.json").read_text() == '{"0": 350}'


def limited_stage(number, watts, decision, drawn_w):
    changes = (KnobChange("power_limit", 350, watts),) if number else ()
    return TuneStage(
        number=number,
        changes=changes,
        config=KnobConfig.of({"power_limit": watts}),
        decision=decision,
        why="",
        figure=Interval(39.0, 40.0, 41.0),
        ratio=Interval(0.96, 0.99, 1.02) if number else None,
        sessions=SessionReading(mean_w=drawn_w),
    )


def test_the_lowest_limit_that_costs_less_than_the_noise_is_named_with_what_it_saves():
    stages = [
        limited_stage(0, 350, StageDecision.BASELINE, 300.0),
        limited_stage(1, 300, StageDecision.SAME, 280.0),
        limited_stage(2, 245, StageDecision.SAME, 240.0),
        limited_stage(3, 210, StageDecision.WORSE, 205.0),
    ]
    words = cheap_limit_words(stages)
    assert words.startswith(
        "a power limit of 245 W costs less than the noise: 40.0 (39.0 to 41.0)"
    )
    assert words.endswith("240 W, 10.0 turns/Wh instead of 300 W, 8.0")
    assert cheap_limit_words([stages[0], stages[3]]) is None
