"""Real probes of a fake engine that is a real process, and of servers that are none."""

import asyncio
import contextlib
from random import Random

import pytest
from msgspec.structs import replace

from skep.host.facts import NvidiaReport
from skep.monitor import probe as probing
from skep.monitor.records import Heat, ProbeOutcome, ProbeShape, ProbeTarget
from skep.monitor.schedule import Due
from skep.store.records import EngineTimings, Request
from skep.testing.process import FakeEngine

NO_GPU = {"nvidia": NvidiaReport, "meter": lambda: None}


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(slots=4, token_ms=2, ttft_ms=10) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_fault_is_left(engine):
    yield
    engine.fault(kind="none")


def box(engine, **options):
    return ProbeTarget(
        "box", engine.url, **{"short_tokens": 16, "long_tokens": 0, "timeout_s": 5.0, **options}
    )


def probe(target, **options):
    run = probing.probe_target(Due(target, 2, 7, 100.0), **{**NO_GPU, "nonce": "n", **options})
    return asyncio.run(run)


@pytest.fixture(scope="module")
def probed():
    """A probe and its samples.

    Tokens are far enough apart that a busy machine reads them one by one.
    """
    with FakeEngine(slots=4, token_ms=15, ttft_ms=10) as slow:
        return probe(box(slow, long_tokens=32, concurrency=3))


def test_a_probe_has_the_occasion_the_versions_and_the_load(probed):
    result, _ = probed
    assert (result.outcome, result.era, result.slot, result.due_at) == (
        ProbeOutcome.DONE,
        2,
        7,
        100.0,
    )
    assert (result.running, result.waiting, result.busy) == (0, 0, False)
    assert result.versions["build"] == "skep-fake"
    assert result.started_at < result.ended_at


def test_a_probe_brings_the_cold_run_and_the_hot_ones_on_both_clocks(probed):
    _, samples = probed
    kinds = [(sample.heat, sample.shape, sample.concurrency) for sample in samples]
    assert kinds == [
        (Heat.COLD, ProbeShape.SHORT, 1),
        (Heat.HOT, ProbeShape.SHORT, 1),
        (Heat.HOT, ProbeShape.LONG, 1),
        (Heat.HOT, ProbeShape.SHORT, 3),
    ]
    assert [sample.output_tokens for sample in samples] == [16, 16, 32, 48]
    for sample in samples:
        assert 5 < sample.tok_s < 500  # about 66; the machine may be busy with other things
        assert 5 < sample.engine_tok_s < 500
        assert sample.ttft_ms > 9


def test_a_sample_is_the_median_of_its_streams_and_the_sum_of_their_tokens():
    def row(index, first, last, tokens, engine):
        times = {
            "started_s": 1.0,
            "ended_s": last,
            "first_token_s": first,
            "last_token_s": last,
            "first_byte_s": first,
        }
        timings = EngineTimings(decode_tok_s=engine)
        return Request(
            1,
            0,
            index,
            "fix",
            status=200,
            prompt_tokens=9,
            output_tokens=tokens,
            engine=timings,
            **times,
        )

    rows = [
        row(0, 1.5, 2.5, 101, 110.0),
        row(1, 2.0, 4.0, 101, 60.0),
        row(2, 1.25, 3.25, 41, None),
    ]
    sample = probing.sample_of(rows, 77.0, Heat.HOT, ProbeShape.SHORT, 3)
    assert (sample.tok_s, sample.engine_tok_s, sample.ttft_ms) == pytest.approx(
        (50.0, 85.0, 500.0)
    )
    assert (sample.effective_tok_s, sample.output_tokens, sample.prompt_tokens) == pytest.approx(
        (81.0, 243, 27)
    )
    broken = replace(rows[0], error_kind="cut", error="the stream broke")
    failed = probing.sample_of([broken, *rows[1:]], 77.0, Heat.HOT, ProbeShape.SHORT, 3)
    assert (failed.error_kind, failed.output_tokens) == ("cut", 142)


def test_a_few_words_or_one_piece_have_no_speed():
    """A cloud's model ends when it likes, and a proxy may hold an answer back: both would be
    nonsense in tok/s.
    """

    def row(tokens, arrivals):
        times = {"started_s": 0.0, "ended_s": 3.0, "first_byte_s": 0.5, "arrivals_s": arrivals}
        ends = {"first_token_s": arrivals[0], "last_token_s": arrivals[-1], "prompt_tokens": 9}
        timings = EngineTimings(decode_tok_s=1e6)
        return Request(
            1, 0, 0, "fix", status=200, output_tokens=tokens, engine=timings, **times, **ends
        )

    def speeds(row):
        sample = probing.sample_of([row], 77.0, Heat.HOT, ProbeShape.SHORT, 1)
        return sample.tok_s, sample.engine_tok_s, sample.effective_tok_s, sample.ttft_ms

    steady = tuple(1 + n / 10 for n in range(11))
    assert speeds(row(3, steady[:3])) == (None, None, None, 1000.0)
    assert speeds(row(11, steady)) == pytest.approx((10.0, 1e6, 11 / 3, 1000.0))
    assert speeds(row(11, (1.0, 1.0, 1.001, 1.001))) == (None, 1e6, pytest.approx(11 / 3), 1000.0)


def test_what_a_server_says_is_one_plain_line_without_the_key(engine):
    """OpenAI repeats the key that it refuses; others may send what moves a terminal's cursor."""
    row = Request(
        1,
        0,
        0,
        "fix",
        started_s=0.0,
        ended_s=1.0,
        first_byte_s=None,
        first_token_s=None,
        last_token_s=None,
        prompt_tokens=None,
        output_tokens=None,
        status=400,
        error_kind="http_400",
        error="bad\x1b[2J\0 key sk-hunter2",
    )
    fault = probing.fault_of_row(row).without("sk-hunter2")
    assert fault == probing.ProbeFault("http", "HTTP 400: bad [2J key ***")
    assert fault.without(None) is fault
    result, _ = probe(box(engine, model="sk-hunter2", key_env="KEY"), key="sk-hunter2")
    assert (result.error_kind, "***" in result.error, "hunter2" in result.error) == (
        "no_model",
        True,
        False,
    )


def test_no_two_prompts_begin_alike_and_the_shortest_is_short():
    texts = [
        probing.fresh_prompt(Random(tokens), tokens).text for tokens in (1, 30, 256, 257, 258)
    ]
    assert len({text[:7] for text in texts}) == 5
    assert len(texts[0]) < 200


def test_others_at_the_target_are_seen(engine):
    """Somebody's long answer is under way when the probe begins, and one's own requests do not
    count.
    """

    async def beside():
        reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
        messages = b'[{"role":"user","content":"x"}]'
        body = b'{"model":"fake-model","messages":%b,"max_tokens":4000,"stream":true}' % messages
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
            % len(body)
            + body
        )
        await asyncio.to_thread(engine.wait_for, running=1)
        result, _ = await probing.probe_target(Due(box(engine), 0, 1, 0.0), **NO_GPU)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        del reader
        return result

    busy_probe = asyncio.run(beside())
    assert (busy_probe.running, busy_probe.busy) == (1, True)
    engine.wait_for(running=0)


@pytest.mark.parametrize(
    ("before", "after", "own_tokens", "others"),
    [
        (probing.TargetLoad(0, 0, 1000.0), probing.TargetLoad(0, 0, 1500.0), 500, (0, 0)),
        (probing.TargetLoad(0, 0, 1000.0), probing.TargetLoad(0, 0, 1500.0), 100, (1, 0)),
        (probing.TargetLoad(0, 0, 1000.0), probing.TargetLoad(0, 0, 1500.0), None, (0, 0)),
        (probing.TargetLoad(), probing.TargetLoad(), 100, (None, None)),
    ],
)
def test_who_came_and_went_is_found_by_tokens(before, after, own_tokens, others):
    assert probing.other_requests(before, after, own_tokens) == others


def test_busy_slots_of_llama_cpp_are_counted():
    assert (
        probing.count_busy('[{"id": 0, "is_processing": true}, {"is_processing": false}, {}]') == 1
    )
    assert probing.count_busy('{"error": "no"}') is None


@pytest.mark.parametrize(
    ("counters", "running", "waiting"),
    [
        ({"skep_slots": 4, "vllm:num_requests_running": 9}, 0, 0),
        ({"skep_slots": 4, "skep_slots_busy": 2, "skep_queue_length": 5}, 2, 5),
        ({"vllm:num_requests_running": 3, "vllm:num_requests_waiting": 1}, 3, 1),
        ({"sglang:num_running_reqs": 2, "sglang:num_queue_reqs": 0}, 2, 0),
        ({"llamacpp:requests_processing": 1, "llamacpp:requests_deferred": 0}, 1, 0),
        ({"go_goroutines": 12}, None, None),
        ({"vllm:num_requests_running": float("nan")}, None, 0),
    ],
)
def test_load_is_read_by_the_names_of_each_engine(counters, running, waiting):
    load = probing.load_of(counters)
    assert (load.running, load.waiting) == (running, waiting)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ({"kind": "500"}, "http"),
        ({"kind": "429"}, "busy"),
        ({"kind": "hang-mid", "after_tokens": 3}, "timeout"),
        ({"kind": "close-mid", "after_tokens": 3}, "cut"),
        ({"kind": "html"}, "not_json"),
        ({"kind": "garbage"}, "protocol"),
        ({"kind": "html", "path": "/v1/models"}, "not_json"),
        ({"kind": "500", "path": "/v1/models"}, "http"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_goes_wrong_becomes_a_probe_that_failed(engine, fault, kind):
    engine.fault(**fault)
    result, samples = probe(box(engine, timeout_s=0.4))
    assert (result.outcome, result.error_kind) == (ProbeOutcome.FAILED, kind)
    assert result.error
    assert "\n" not in result.error
    assert [sample.error_kind for sample in samples] == ([] if "path" in fault else [kind])


def test_a_target_that_fails_in_the_middle_keeps_what_it_brought(engine):
    engine.fault(kind="close-mid", after_tokens=30, times=None)
    result, samples = probe(box(engine, long_tokens=64))
    assert (result.outcome, [sample.error_kind for sample in samples]) == (
        ProbeOutcome.FAILED,
        [None, None, "cut"],
    )


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"url": "ftp://example"}, "url", "ftp://example"),
        ({"url": "http://127.0.0.1:1"}, "connect", "refused"),
        ({"model": "gpt-9"}, "no_model", "gpt-9"),
        ({"key_env": "NO_SUCH_VARIABLE"}, "auth", "NO_SUCH_VARIABLE"),
    ],
)
def test_a_target_that_is_described_wrongly_fails(engine, change, kind, message):
    result, samples = probe(replace(box(engine), **change))
    assert (result.outcome, result.error_kind, samples) == (ProbeOutcome.FAILED, kind, [])
    assert message in result.error


def test_a_probe_that_is_broken_off_says_nothing(engine):
    """Cancelled in the middle: no probe is made up of it, and the engine's slot is free again."""

    async def begin():
        task = asyncio.create_task(
            probing.probe_target(Due(box(engine, short_tokens=4000), 0, 1, 0.0), **NO_GPU)
        )
        await asyncio.to_thread(engine.wait_for, running=1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(begin())
    engine.wait_for(running=0)


class Metered:
    def __init__(self):
        self.calls = []

    def begin(self):
        self.calls.append("begin")

    def end(self):
        self.calls.append("end")
        gpus = [
            {"temperature_max_c": 61.0, "sm_clock_min_mhz": 1400},
            {"temperature_max_c": 70.0, "sm_clock_min_mhz": None},
        ]
        report = {
            "mean_w": 300.0,
            "max_w": 410.0,
            "joules": 9.0,
            "seconds": 0.03,
            "throttled": ["power cap"],
        }
        return {**report, "source": "NVML energy counter", "gpus": gpus}

    def close(self):
        self.calls.append("close")


def test_of_a_target_on_this_machine_driver_and_power_are_kept(engine):
    meter = Metered()
    cards = NvidiaReport(driver_version="580.1", cuda_version="13.0")
    result, _ = probe(box(engine), nvidia=lambda: cards, meter=lambda: meter)
    assert meter.calls == ["begin", "end", "close"]
    assert (result.versions["driver"], result.versions["cuda"]) == ("580.1", "13.0")
    expected = {
        name: result.host[name]
        for name in ("mean_w", "temperature_max_c", "sm_clock_min_mhz", "throttled", "gpus")
    }
    assert expected == {
        "mean_w": 300.0,
        "temperature_max_c": 70.0,
        "sm_clock_min_mhz": 1400,
        "throttled": ["power cap"],
        "gpus": 2,
    }
