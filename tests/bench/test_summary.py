"""A whole run in figures: speedups, drift, classes, open loads, energy, and runs that are left out."""

from operator import attrgetter

import pytest
from sample_rows import evenly, request

from skep.bench.level_rounds import figure_of
from skep.bench.summary import cost_per_million_tokens, repeat_figure, summarise
from skep.report.sweep_text import print_summary, remarks
from skep.store.records import ClientSample, EngineTimings, LevelFact


def row(level=1, repeat=0, index=0, start=0.0, end=1.0, tokens=10, **fields):
    """Return a request with its first token after a tenth of its time, and its last at its end."""
    arrivals = evenly(start + (end - start) / 10, end, 10)
    defaults = {
        "level": level,
        "repeat": repeat,
        "index": index,
        "tokens": tokens,
        "finish_reason": "stop",
        **fields,
    }
    return request(*arrivals, start=start, **defaults)


def sample(level, repeat, *, limited):
    return ClientSample(level, repeat, 1.0, 1.0, 0.1, limited)


def serially(lengths, level=1, repeat=0, begin=0.0, **fields):
    rows = []
    at = begin
    for index, (seconds, tokens, reason) in enumerate(lengths):
        rows.append(
            row(level, repeat, index, at, at + seconds, tokens, finish_reason=reason, **fields)
        )
        at += seconds
    return rows


# Speedup


def test_one_answer_that_ran_into_the_limit_does_not_make_the_only_speedup():
    """Published as 5.53x by wall time, really 3.1x: one serial answer ran on to the limit.

    By tokens it is 2.9.
    """
    task = (10.0, 100, "stop")
    whole = 10
    serial = serially([task] * (whole - 1) + [(96.87, 1000, "length")])
    swarm = [row(10, 0, index, 0.0, 29.0 + index / 9, 100) for index in range(9)] + [
        row(10, 0, 9, 0.0, 33.76, 100)
    ]
    speedups = summarise("r", [*serial, *swarm]).speedups
    assert speedups.by_wall == pytest.approx(5.53, abs=0.01)
    assert (speedups.truncated_serial, speedups.truncated_swarm) == (1, 0)
    assert (speedups.tokens_serial, speedups.tokens_swarm) == (1900, 1000)
    assert speedups.by_tokens == pytest.approx((1000 / 33.76) / (1900 / 186.87), rel=0.01)


@pytest.mark.parametrize(
    ("rows", "by_wall"),
    [
        ([row(1), row(1, index=1), row(2)], None),
        ([row(1), row(2, error_kind="cut")], None),
        ([row(2)], None),
        (
            [row(1, end=4.0, prompt_tokens=100), row(2, start=10.0, end=12.0, prompt_tokens=1000)],
            None,
        ),
        (
            [row(1, end=4.0, prompt_tokens=100), row(2, start=10.0, end=12.0, prompt_tokens=102)],
            2.0,
        ),
        ([row(c, n, end=90.0 * n + 8 / c, start=90.0 * n) for c in (1, 2) for n in (0, 1)], 2.0),
    ],
    ids=[
        "more tasks",
        "a failure",
        "no serial run",
        "other prompts",
        "prompts alike",
        "two runs of both",
    ],
)
def test_speedups_are_not_claimed_of_other_work_or_of_failures(rows, by_wall):
    speedups = summarise("r", rows).speedups
    assert (speedups and (speedups.by_wall, speedups.tasks)) == (
        by_wall and (pytest.approx(by_wall), 1)
    )


def test_a_speedup_is_the_ratio_of_the_two_times_it_is_told_with():
    """Two runs of six tasks against one of twelve: "12.3 s, 31.5 s: 0.78x", where 12.3 / 31.5 is
    0.39.
    """
    rows = [
        *serially([(2.0, 10, "stop")] * 6),
        *serially([(2.0, 10, "stop")] * 6, repeat=1, begin=50.0),
    ]
    rows += [row(4, 0, index, 0.0, 31.5) for index in range(12)]
    summary = summarise("r", rows)
    assert summary.speedups is None
    assert not any("at once" in line for line in remarks(summary))


def test_a_speedup_is_of_the_runs_that_both_levels_have():
    """A run of the swarm that is left out takes its partner of the serial side with it."""
    rows = [
        *serially([(4.0, 10, "stop")] * 2),
        *serially([(40.0, 10, "stop")] * 2, repeat=1, begin=50.0),
    ]
    rows += [
        row(2, repeat, index, 200.0 + 10 * repeat, 204.0 + 10 * repeat)
        for repeat in (0, 1)
        for index in (0, 1)
    ]
    summary = summarise("r", rows, [sample(2, 1, limited=True)])
    speedups = summary.speedups
    assert (
        speedups.serial_wall_s,
        speedups.swarm_wall_s,
        speedups.by_wall,
        speedups.by_tokens,
    ) == (
        8.0,
        4.0,
        2.0,
        2.0,
    )
    assert (speedups.tasks, speedups.tokens_serial, speedups.tokens_swarm) == (2, 20, 20)
    (line,) = [line for line in remarks(summary) if "at once" in line]
    assert line.startswith("one at a time 8.0 s, 2 at once 4.0 s: 2.00x by wall time")


SAMPLED = LevelFact(1, 0, "serial_sample", {"of": 16})


def sampled_rows(tasks=16):
    """Four tasks one at a time, which take 10 s on average, and all of them at once in 20 s."""
    seconds = (9.0, 10.0, 11.0, 10.0)
    serial = serially([(second, 100, "stop") for second in seconds], prompt_tokens=50)
    swarm = [row(16, 0, index, 500.0, 520.0, 100, prompt_tokens=50) for index in range(tasks)]
    return [*serial, *swarm]


def test_a_serial_side_of_some_tasks_is_scaled_to_all():
    """42 minutes one at a time need not be waited for: four of sixteen tasks show how long all
    would take.
    """
    speedups = summarise("r", sampled_rows(), facts=[SAMPLED]).speedups
    assert (speedups.sampled, speedups.tasks) == (4, 16)
    assert (speedups.serial_wall_s, speedups.by_wall) == (160.0, 8.0)
    assert (speedups.tokens_serial, speedups.tokens_swarm) == (400, 1600)
    assert speedups.by_tokens == pytest.approx(8.0)
    assert speedups.combined_serial_tok_s == pytest.approx(4 * 150 / 40)
    assert speedups.combined_swarm_tok_s == pytest.approx(16 * 150 / 20)


def test_a_scaled_serial_side_has_an_interval():
    speedups = summarise("r", sampled_rows(), facts=[SAMPLED]).speedups
    interval = speedups.serial_wall_interval
    assert interval.low == pytest.approx(160 - 18.0, abs=0.1)
    assert interval.high == pytest.approx(160 + 18.0, abs=0.1)
    assert speedups.by_wall_interval.high == pytest.approx(interval.high / 20)


def test_a_scaled_serial_side_says_from_how_many_tasks():
    summary = summarise("r", sampled_rows(), facts=[SAMPLED])
    speedup, combined = (line for line in remarks(summary) if "one at a time" in line)
    serial_side = "2 min 40 s (2 min 21 s to 2 min 58 s, scaled from 4 of 16 tasks)"
    assert f"{serial_side}, 16 at once 20.0 s: 8.00x" in speedup
    assert combined == "prompt + output: 15.0 tok/s one at a time, 120 tok/s with 16 at once"


def test_some_tasks_have_no_speedup_without_their_fact_or_with_a_swarm_that_was_cut():
    assert summarise("r", sampled_rows()).speedups is None
    assert summarise("r", sampled_rows(tasks=15), facts=[SAMPLED]).speedups is None


def test_prompt_and_output_tokens_are_told_together_and_the_prompts_alone():
    """Published as 85.4 prompt tok/s alone and 1,100 tok/s combined: no column had either."""
    cached = EngineTimings(cached_tokens=20)
    rows = [
        row(1, end=10.0, tokens=40, prompt_tokens=60),
        row(1, 1, end=10.0, tokens=40, prompt_tokens=60),
    ]
    (level,) = summarise("r", rows).levels
    assert (level.combined_tok_s, level.prompt_tok_s) == (pytest.approx(10.0), pytest.approx(60.0))
    (level,) = summarise(
        "r", [row(1, end=10.0, tokens=40, prompt_tokens=60, engine=cached)]
    ).levels
    assert level.prompt_tok_s == pytest.approx(40.0)
    (level,) = summarise("r", [row(1, end=10.0)]).levels
    assert (level.combined_tok_s, level.prompt_tok_s) == (None, None)


# Drift


def test_one_agent_that_is_slower_at_the_end_is_drift():
    """Failed requests are none, and it is unknown with one run or one request."""
    early = serially([(1.0, 10, "stop")] * 5)
    failed = row(1, 3, 9, 110.0, 900.0, error_kind="timeout")
    late = serially([(1.25, 10, "stop")] * 5, repeat=3, begin=100.0)
    drift = summarise("r", [*early, row(4, 0), *late, failed]).drift
    assert drift.estimate == pytest.approx(0.8)
    assert not drift.contains(1.0)
    assert summarise("r", early).drift is None
    assert summarise("r", [row(1, 0), row(1, 1, start=9.0, end=10.0)]).drift is None


# Few runs


def runs_of(level, walls):
    """Return runs with three requests an agent, and ten tokens a run."""
    return [
        row(level, repeat, index, 100.0 * repeat, 100.0 * repeat + wall, tokens=10 / (3 * level))
        for repeat, wall in enumerate(walls)
        for index in range(3 * level)
    ]


def batches(tokens, tasks_each=3, runs=3):
    """Every agent has so many tasks of a second; a task of a level has as many tokens as `tokens`
    says.
    """
    return [
        row(c, r, i * tasks_each + n, 100.0 * r + n, 100.0 * r + n + 1 + r / 1000, tokens=count)
        for c, count in tokens.items()
        for r in range(runs)
        for i in range(c)
        for n in range(tasks_each)
    ]


def test_levels_of_fewer_than_three_tasks_an_agent_have_no_cliff():
    """Six tasks at C=4 claimed a cliff of 28 %, though effective tok/s rose: two tasks an agent
    are no plateau.
    """
    enough = summarise("r", batches({1: 10, 2: 10, 4: 3}))
    assert (enough.turning.cliff, enough.turning.few) == (2, ())
    summary = summarise("r", [*batches({1: 10, 2: 10}), *batches({4: 3}, tasks_each=2)])
    assert (summary.turning.cliff, summary.turning.few, summary.turning.sure) == (
        None,
        (4,),
        False,
    )
    (line,) = [line for line in remarks(summary) if "C=4" in line]
    assert "fewer than three tasks an agent" in line
    assert "--tasks 12" in line


def test_a_burst_of_three_runs_has_a_cliff_and_one_of_two_runs_has_none():
    """Each run gives every agent one task."""
    bursts = [
        summarise("r", batches({1: 10, 2: 10, 4: 3}, tasks_each=1, runs=runs), burst=True)
        for runs in (2, 3)
    ]
    assert [burst.turning.cliff for burst in bursts] == [None, 2]


def test_two_runs_are_told_as_two_values_and_no_knee_is_made_of_them(capsys):
    """Told as "125.5  0.0..294.4" and "knee at C=1, between 0 and 2; cliff beyond C=2, between 1
    and 4".
    """
    rows = [*runs_of(1, (0.071, 0.089)), *runs_of(2, (0.07, 0.09)), *runs_of(4, (0.08, 0.105))]
    summary = summarise("r", rows)
    assert [level.effective_interval for level in summary.levels] == [None] * 3
    assert [level.ttft_interval for level in summary.levels] == [None] * 3
    print_summary(summary)
    output = capsys.readouterr()
    assert "112..141 (2 runs)" in output.out
    assert "C=1, C=2, C=4 cannot be told apart" in output.err
    assert not any(words in output.err for words in ("knee at", "cliff beyond", "between 0"))


def test_no_knee_is_told_of_single_runs_nor_of_levels_that_the_client_limited():
    """One level that it did not limit is no curve."""
    summary = summarise("r", [*runs_of(1, (0.2,)), *runs_of(2, (0.1,)), *runs_of(4, (0.1,))])
    assert (summary.turning.knee, summary.turning.cliff) == (None, None)
    assert any("no level was run twice" in line for line in remarks(summary))
    rows = batches({1: 10, 2: 10, 4: 1})
    assert summarise("r", rows).turning.cliff == 2
    assert (
        summarise("r", rows, [sample(4, r, limited=True) for r in range(3)]).turning.cliff is None
    )
    limited = [sample(level, r, limited=True) for level in (2, 4) for r in range(3)]
    assert not any("knee" in line for line in remarks(summarise("r", rows, limited)))
    empty = summarise("r", [row(0)])
    assert (empty.levels, empty.turning, empty.client_limited) == ((), None, False)


# The client was the limit


@pytest.mark.parametrize(
    ("figures", "why"),
    [
        ({"cpu_share": 0.92}, "it used 92 % of a core"),
        ({"delivered": 0.9}, "90 % of the requests asked for were in flight"),
        (
            {"loop_lag_p99_ms": 232.0, "cpu_share": 0.9},
            "event loop lag 232 ms, it used 90 % of a core",
        ),
        ({}, "the reason was not recorded"),
    ],
)
def test_every_way_in_which_a_client_is_the_limit_has_its_words(figures, why):
    fields = {"loop_lag_p99_ms": 1.0, "loop_lag_max_ms": 1.0, "cpu_share": 0.1, **figures}
    slow = ClientSample(8, 0, client_limited=True, **fields)
    summary = summarise("r", [row(8, 0), row(8, 1)], [slow])
    assert summary.levels[0].repeats[0].why == why


# Schedules


@pytest.mark.parametrize(
    ("due_s", "ttft_ms", "total_ms"), [(4.0, 1100.0, 2000.0), (5.5, 100.0, 1000.0)]
)
def test_latency_counts_from_when_a_request_was_due(due_s, ttft_ms, total_ms):
    """One sent before it was due counts from its sending:
    timers fire up to a millisecond early.
    """
    (level,) = summarise("r", [row(1, start=5.0, end=6.0, scheduled_s=due_s)], closed=False).levels
    assert (level.ttft_ms.p50, level.total_ms.p50) == (
        pytest.approx(ttft_ms),
        pytest.approx(total_ms),
    )
    assert level.wall_s == pytest.approx(total_ms / 1000)


def test_levels_of_a_rate_are_no_concurrencies():
    """Level 1 is the first rate: no speedup, no contention, no knee and no drift come of it."""
    rows = [
        row(level, repeat, index) for level in (1, 2) for repeat in (0, 1) for index in range(4)
    ]
    summary = summarise("r", rows, closed=False)
    assert [level.concurrency for level in summary.levels] == [1, 2]
    assert (summary.speedups, summary.turning, summary.drift) == (None, None, None)
    assert all(
        level.contention_pct is None and level.plateau_tok_s is None for level in summary.levels
    )
    assert all(level.delivered is None for level in summary.levels)


def test_a_run_in_which_requests_failed_is_never_left_out():
    """A server that dies refuses at once, and looks like a client that cannot keep up."""
    rows = [
        row(2, 0),
        row(2, 1, start=9.0, end=10.0),
        row(2, 1, index=1, start=9.0, end=9.1, error_kind="connect"),
    ]
    samples = [sample(2, 0, limited=False), sample(2, 1, limited=True)]
    (level,) = summarise("r", rows, samples).levels
    assert (level.requests, level.failed) == (3, 1)


# Conversations


def talking(agents):
    """Each agent is answered for a second at 10 tok/s, then thinks for one; agents begin a quarter
    apart.
    """
    starts = [
        (agent, turn, agent / 4 + 2.0 * turn) for agent in range(agents) for turn in range(5)
    ]
    return [row(agents, 0, 5 * a + t, at, at + 1.0, session=a, turn=t) for a, t, at in starts]


def test_agents_that_think_are_compared_by_one_figure_at_every_level():
    """Eight agents bring eight times what one does; that one of them has a plateau must not halve
    it.
    """
    figure = figure_of(talking(1), 1)
    eight = figure_of(talking(8), 8)
    assert eight / figure == pytest.approx(8.0, rel=0.25)
    levels = summarise("r", [*talking(1), *talking(8)]).levels
    assert repeat_figure(levels[1])[0] / repeat_figure(levels[0])[0] == pytest.approx(
        8.0, rel=0.25
    )
    assert [level.delivered for level in levels] == [None, None]


# Energy


def drawn(level, repeat, joules=100.0):
    return LevelFact(
        level,
        repeat,
        "energy",
        {"joules": joules, "seconds": 2.0, "max_w": 70.0, "throttled": ["heat"]},
    )


def test_energy_is_summed_over_the_runs_of_a_level():
    """But for those that are left out, of 100 J and 10 tokens here: 6 J a token, not 16."""
    rows = [row(2, 0), row(2, 1, start=9.0, end=10.0)]
    facts = [drawn(2, 0), drawn(2, 1, 60.0)]
    energy = summarise("r", rows, facts=facts).levels[0].energy
    assert (energy.joules, energy.seconds, energy.joules_per_token, energy.mean_w) == (
        160.0,
        4.0,
        8.0,
        40.0,
    )
    assert (energy.max_w, energy.throttled) == (70.0, ("heat",))
    assert (
        summarise("r", rows, [sample(2, 0, limited=True)], facts).levels[0].energy.joules_per_token
        == 6.0
    )
    failed = summarise("r", [row(2, error_kind="cut")], facts=[drawn(2, 0)]).levels[0].energy
    assert (failed.joules, failed.joules_per_token) == (100.0, None)
    # A thousand kilowatt hours.
    assert cost_per_million_tokens(3600.0, 0.30) == pytest.approx(300.0)


@pytest.mark.parametrize(
    ("first", "second", "tok_s"),
    [({"tpot_s": 0.1}, {"tpot_s": 0.3}, 5.0), ({"tpot_s": 0.1}, {"output_tokens": 10.0}, 10.0)],
    ids=["both runs tell it", "one does not"],
)
def test_the_engines_own_mean_stands_in_where_it_says_nothing_of_a_request(first, second, tok_s):
    facts = [LevelFact(2, repeat, "counters", fact) for repeat, fact in enumerate((first, second))]
    (level,) = summarise("r", [row(2, 0), row(2, 1, start=9.0, end=10.0)], facts=facts).levels
    assert level.engine_tok_s == pytest.approx(tok_s)


def known(level=1, repeat=0, index=0, first=1.0, last=2.0, end=2.0, tokens=10, **fields):
    """Return a request that waits a second and answers for another."""
    arrivals = evenly(first, last, tokens) if tokens else ()
    return request(
        *arrivals, level=level, repeat=repeat, index=index, end=end, tokens=tokens, **fields
    )


FAILED = known(2, error_kind="connect", tokens=None)
TIMINGS = EngineTimings(cached_tokens=10, decode_tok_s=40.0)


@pytest.mark.parametrize(
    ("rows", "figures"),
    [
        (
            [known(2, end=3.0), known(2, index=1, end=4.0)],
            {"effective_tok_s": 5.0, "wall_s": 4.0, "output_tokens": 20},
        ),
        (
            [known(1), known(1, 1, start=100.0, first=101.0, last=102.0, end=104.0)],
            {
                "wall_s": 6.0,
                "effective_tok_s": 20 / 6,
                "effective_low": 2.5,
                "effective_high": 5.0,
            },
        ),
        (
            [known(1, 0, n, last=1.0 + seconds) for n, seconds in enumerate((1.0, 2.0, 10.0))],
            {"task_tok_s": 5.0},
        ),
        ([known(4)], {"contention_pct": None}),
        ([known(tokens=11)], {"tpot_ms.p50": 100.0}),
        ([known(start=0.25)], {"ttft_ms.mean": 750.0}),
        (
            [known(2), known(2, index=1, end=10.0, tokens=1000, error_kind="cut")],
            {
                "requests": 2,
                "failed": 1,
                "effective_tok_s": 1,
                "output_tokens": 10,
                "output_tokens_each": 10,
                "plateau_tok_s": 5,
                "ttft_ms.p99": 1000,
            },
        ),
        ([FAILED], {"effective_tok_s": None, "ttft_ms": None}),
        (
            [known(last=1.0, tokens=1)],
            {"task_tok_s": None, "tpot_ms": None, "effective_tok_s": 0.5},
        ),
        (
            [known(prompt_tokens=40, engine=TIMINGS)],
            {"engine_tok_s": 40.0, "cached_prompt_share": 0.25},
        ),
    ],
    ids=[
        *(
            "output tokens over wall time",
            "the pause between two runs is no wall time",
            "the median of tasks",
        ),
        *("no contention without C=1", "time per token without the first", "TTFT from sending"),
        *("failures cost time and bring no tokens", "where all failed there is no speed"),
        *("one token has no speed of its own", "the engine's own speed and cache"),
    ],
)
def test_figures_of_a_level(rows, figures):
    (level,) = summarise("r", rows).levels
    for name, value in figures.items():
        assert attrgetter(name)(level) == (None if value is None else pytest.approx(value)), name
    assert sum(count for _, count in level.errors) == level.failed


def test_levels_stand_beside_each_other():
    """Contention is what a task loses against one alone, the speedup is by wall time; the warm-up
    counts nowhere.
    """
    summary = summarise(
        "r", [known(0), known(1, end=8.0), known(2, end=5.0), known(8, last=3.0, end=2.0)]
    )
    assert [level.concurrency for level in summary.levels] == [1, 2, 8]
    assert [level.contention_pct for level in summary.levels] == [0.0, 0.0, 50.0]
    speedups = summary.speedups
    assert (speedups.serial_wall_s, speedups.swarm_wall_s, speedups.by_wall) == (8.0, 2.0, 4.0)
    assert summarise("r", [known(4)]).speedups is None
