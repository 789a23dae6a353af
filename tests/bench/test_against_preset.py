"""A run held against published figures: the same metric by the same clock, or the reason why it is not compared."""

import pytest
from msgspec.structs import replace

from skep.bench.against_preset import ObservedServer, PublishedShape, judge, rerun_of, same_model
from skep.bench.compare import ComparedRun
from skep.bench.summary import summarise
from skep.catalog.presets import Need, Preset, Published
from skep.errors import UserError
from skep.report.sweep_text import range_text
from skep.store.records import ClientSample, EngineTimings, Request

SHORT, LONG = {"input_tokens": 100, "output_tokens": 50}, {"input_tokens": 100, "output_tokens": 400}
FIGURE = Published(100.0, "output", 2, clock="client", **SHORT)
SEEN = ObservedServer("mine", "vllm 0.19.1")


def preset(*published, **fields):
    told = {"engine": "vllm", "model": "qwen3-8b", "checkpoint": "Qwen/Qwen3-8B-AWQ", "served_as": "mine"}
    told |= {"hardware": "rtx-3090", "source": "a blog", "slots": 4, "engine_version": "0.19.1", **fields}
    return Preset("mine-8b", "Mine", published=tuple(published), **told)


def row(repeat, index, level=2, seconds=1.0, **fields):
    """50 tokens: the first after 0.2 s, the last at its end."""
    at = 10.0 * repeat
    told = {
        "first_token_s": at + 0.2,
        "last_token_s": at + seconds,
        "prompt_tokens": 100,
        "output_tokens": 50,
        **fields,
    }
    return Request(level, repeat, index, "fix", at, at + seconds, **told)


def side(*, level=2, seconds=(1.0, 1.0), limited=False, **fields):
    """Two requests at once in each run."""
    rows = [row(n, index, level, s, **fields) for n, s in enumerate(seconds) for index in range(2)]
    samples = [ClientSample(level, n, 1.0, 1.0, 0.1, limited) for n in range(len(seconds))]
    return ComparedRun(summarise("r", rows, samples), rows)


def held(figure=FIGURE, run=None, seen=SEEN, missing=(), **fields):
    verdict = judge(preset(figure, **fields), run or side(), seen, missing)
    (found,) = verdict.rows
    return found


@pytest.mark.parametrize(
    ("figures", "number", "shape", "levels"),
    [
        ((replace(FIGURE, **LONG), FIGURE, replace(FIGURE, concurrency=8)), None, (100, 50), (2, 8)),
        ((replace(FIGURE, **LONG), FIGURE), None, (100, 400), (2,)),
        ((FIGURE, FIGURE, replace(FIGURE, concurrency=3, **LONG)), 3, (100, 400), (3,)),
    ],
    ids=["the shape with most figures", "of equals the first", "that of a figure that was named"],
)
def test_one_shape_is_run_at_the_concurrencies_of_its_figures(figures, number, shape, levels):
    rerun = rerun_of(preset(*figures), number)
    assert (rerun.shape, rerun.levels) == (PublishedShape(*shape), levels)


# What is run


@pytest.mark.parametrize(
    ("published", "number", "said"),
    [
        ((), None, "publishes no figures"),
        ((Published(9.0, "decode", 1),), None, "no figure with the lengths"),
        ((FIGURE,), 2, "--shape-of 2 is not the number of a published figure"),
        ((FIGURE, Published(9.0, "decode", 1)), 2, "published without its token lengths"),
    ],
)
def test_what_cannot_be_rerun_is_said_before_anything_is_measured(published, number, said):
    with pytest.raises(UserError, match=said):
        rerun_of(preset(*published), number)


# The same metric by the same clock


@pytest.mark.parametrize(
    ("how", "run", "measured", "clock", "why"),
    [
        ({"metric": "output"}, {}, 100.0, "client", None),
        ({"metric": "combined"}, {}, 300.0, "client", None),
        ({"metric": "combined"}, {"prompt_tokens": None}, None, None, ""),
        ({"metric": "decode"}, {}, 50 / 0.8, "client", None),
        ({"metric": "decode", "clock": "engine"}, {"engine": EngineTimings(decode_tok_s=70.0)}, 70.0, "engine", None),
        ({"metric": "decode", "clock": "engine"}, {}, 50 / 0.8, "client", "published by the engine's clock"),
    ],
    ids=[
        *("output tokens over wall time", "with the prompt's", "a prompt of unknown length"),
        *("from first to last token", "what the engine says", "an engine that says nothing"),
    ],
)
def test_a_metric_is_measured_by_its_clock(how, run, measured, clock, why):
    found = held(replace(FIGURE, **how), side(**run))
    assert found.measured == (None if measured is None else pytest.approx(measured))
    assert found.ratio == (None if measured is None else pytest.approx(measured / 100))
    assert clock is None or found.clock == clock
    assert (found.why is None) if why is None else (why in found.why)
    assert found.fair is (why is None)


@pytest.mark.parametrize(
    ("figure", "fields", "served_as", "ratio", "fair", "said"),
    [
        (FIGURE, {}, "mine", 1.0, True, None),
        (replace(FIGURE, clock=None), {}, "mine", 1.0, True, "names its clock"),
        (FIGURE, {"stand_in": True}, "mine", 1.0, False, "Qwen/Qwen3-8B-AWQ in its place"),
        (FIGURE, {}, "smollm2-135m", None, False, "smollm2-135m"),
    ],
    ids=["none", "a clock that is not published is the client's", "a checkpoint nobody named", "another model"],
)
def test_what_differs_for_all_figures_is_said_once(figure, fields, served_as, ratio, fair, said):
    """Another model is measured all the same, and not compared."""
    verdict = judge(preset(figure, **fields), side(), ObservedServer(served_as, "vllm 0.19.1"))
    (found,) = verdict.rows
    assert (found.measured, found.clock, found.fair) == (pytest.approx(100.0), "client", fair)
    assert found.ratio == (ratio and pytest.approx(ratio))
    assert (verdict.differences == ()) if said is None else (said in verdict.differences[0])
    assert (verdict.best is None) == (not fair)


def test_the_interval_is_of_what_was_measured_and_needs_three_runs():
    found = held(run=side(seconds=(1.0, 1.1, 0.9)))
    assert found.interval.low < found.measured < found.interval.high
    assert found.ratio_interval.estimate == pytest.approx(found.ratio)
    assert held(run=side(seconds=(1.0,))).interval is None
    two = held(run=side(seconds=(1.0, 1.25)))
    assert (two.interval, two.ratio_interval, len(two.runs)) == (None, None, 2)
    assert range_text(two.interval, two.runs).endswith(" (2 runs)")


# Why not


@pytest.mark.parametrize(
    ("figure", "said"),
    [
        (Published(100.0, "output", 2), "lengths are not published"),
        (replace(FIGURE, concurrency=8), "C=8 was not run"),
        (replace(FIGURE, **LONG), "--shape-of 1 runs it"),
        (replace(FIGURE, concurrency=8, **LONG), "another shape, 100 in, 400 out"),
    ],
)
def test_a_figure_that_was_not_rerun_says_why(figure, said):
    found = held(figure)
    assert found.ratio is None
    assert said in found.why


@pytest.mark.parametrize("name", ["mine", "qwen3-8b", "Qwen/Qwen3-8B-AWQ", "Qwen3 8B", "Qwen/Qwen3-8B"])
def test_a_model_is_known_by_its_names(name):
    assert same_model(preset(), name)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (ObservedServer("mine", "llamacpp b7000"), "another engine"),
        (ObservedServer("mine", "vllm 0.21.0"), "published with 0.19.1, here 0.21.0"),
        (replace(SEEN, cards=("NVIDIA GeForce RTX 4090",)), "measured on rtx-3090, this machine has 1x rtx-4090"),
        (replace(SEEN, cards=()), "measured on rtx-3090, this machine has no GPU"),
        (ObservedServer("mine", "simulated: as vllm", simulated=True), "no model ran"),
        (ObservedServer("mine"), None),
        (replace(SEEN, cards=("NVIDIA GeForce RTX 3090",) * 2), None),
    ],
)
def test_other_conditions_are_named_beside_the_share(seen, said):
    """A server that does not say what it is is taken at its word; cards of the same kind change nothing."""
    found = held(seen=seen)
    assert found.ratio == pytest.approx(1.0)
    assert found.fair is (said is None)
    assert said is None or said in found.why


def test_a_client_at_its_limit_and_failed_requests_are_named():
    assert "the client was the limit" in held(run=side(limited=True)).why
    rows = [row(0, 0), row(0, 1), row(0, 2, error_kind="http_500", output_tokens=None, prompt_tokens=None)]
    assert "1 of 3 requests failed" in held(run=ComparedRun(summarise("r", rows), rows)).why


def test_a_need_that_is_not_known_to_be_met_is_named():
    need = Need("genesis", "patch", "the patches", "quicker")
    found = held(replace(FIGURE, needs=("genesis",)), missing=(need,), needs=(need,))
    assert "needs the patches" in found.why
    assert "SKEP_HAVE=genesis" in found.why
    assert held(missing=(need,), needs=(need,)).fair  # that figure does not rest on it


def test_the_best_is_the_largest_output_that_can_be_compared():
    others = (FIGURE, replace(FIGURE, metric="decode", tok_s=999.0), Published(5000.0, "output", 2))
    assert judge(preset(*others), side(), SEEN).best.published is FIGURE
