"""`skep calibrate` as a user runs it: on a fake engine with known times, its likely misuse, Ctrl-C, what is kept."""

import asyncio
import json
import signal
import subprocess
import sys

import pytest

from skep.bench.calibration import CalibrationPlan, check, measure
from skep.bench.endpoint import find_endpoint
from skep.bench.metrics import levels_of
from skep.bench.records import SweepSummary
from skep.bench.tasks import TaskMaker
from skep.catalog.gpus import device
from skep.catalog.models import geometry
from skep.cli.calibrate_run import CalibrateOptions, describe
from skep.deploy.stored_calibration import find_calibration, fitted_now, measured_of
from skep.errors import EndpointError, UserError
from skep.host.facts import read_host
from skep.host.nvidia import NvidiaReport
from skep.planner.calibration import fit, speed_model_maker
from skep.planner.constants import Constants
from skep.planner.quants import KV_TYPES, QUANTS
from skep.planner.setup import Rig, Setup
from skep.planner.step import UNTUNED
from skep.store.database import open_store
from skep.store.records import Request
from skep.testing.process import FakeEngine

WHAT = ("--geometry", "qwen3-8b", "--engine", "vllm", "--gpu", "rtx-3090", "--quant", "awq")


def store_of(tmp_path):
    return open_store(tmp_path / "data" / "skep" / "skep.sqlite3")


@pytest.mark.slow
def test_a_fake_engine_of_known_times_gives_known_factors(tmp_path):
    """10 ms a token alone, 16 with four; a millisecond a prompt token: long beside what a busy machine adds."""
    plan = CalibrationPlan(4, budget_s=40.0, prompt_tokens=96, answer_tokens=16, most_runs=4)
    setup = Setup(geometry("qwen3-8b"), QUANTS["awq"], KV_TYPES["bf16"], "vllm", slots=4)

    async def take(url, store):
        endpoint = await find_endpoint(url, None)

        async def maker_for(workload, _endpoint):
            return TaskMaker(workload)

        return await measure(plan, endpoint, store, read_host(NvidiaReport()), maker_for)

    with FakeEngine(slots=4, token_ms_curve="1:10,4:16", prefill_tok_s=1000) as engine, store_of(tmp_path) as store:
        taken = asyncio.run(take(engine.url, store))
        runs = store.runs()
    measured = taken.measured
    foresee = speed_model_maker(setup, Rig((device("rtx-3090"),)), Constants(), measured)
    found = fit(foresee, measured)
    plain = foresee(UNTUNED)
    alone, prompts = (plain.outcome(one.load()) for one in (measured.alone, measured.prompts))
    assert measured.alone.tpot_s.estimate == pytest.approx(0.010, rel=0.3)
    assert measured.crowd.tpot_s.estimate == pytest.approx(0.016, rel=0.3)
    assert found.decode.estimate == pytest.approx(0.010 / alone.tpot_s, rel=0.3)
    wanted = measured.prompts.input_tokens / 1000
    assert found.prompt.estimate == pytest.approx(min(10.0, wanted / prompts.ttft_s), rel=0.35)
    assert found.batch.estimate > 3  # the planner expects next to nothing of three more
    assert {run.id for run in runs} == set(taken.run_ids)
    assert {run.kind for run in runs} == {"calibrate"}


@pytest.mark.slow
def test_a_calibration_is_told_kept_found_and_forgotten(skep, tmp_path):
    with FakeEngine(slots=4, token_ms=1, prefill_tok_s=4000) as engine:
        run = ("calibrate", "--url", engine.url, *WHAT, "--levels", "1,2", "--check", "3", "--prompt-tokens", 64)
        done = skep(*run, "--budget", "4s", "--json", check=0)
    document = json.loads(done.stdout)
    assert document["words"].startswith("steps take ")
    assert [(level["concurrency"], level["fitted"]) for level in document["levels"]] == [
        (1, True), (2, True), (3, False)
    ]  # fmt: skip
    assert document["levels"][0]["predicted_after"] == pytest.approx(document["levels"][0]["task_tok_s"], rel=0.01)
    assert 0.1 <= document["tuning"]["decode"] <= 10
    kept = json.loads(skep("calibrations", "list", "--json", check=0).stdout)
    assert [row["id"] for row in kept] == [document["id"]]
    assert "qwen3-8b awq, TP=1 on rtx-3090, vllm: steps take" in skep("calibrations", "show", check=0).stdout
    assert document["id"] in skep("calibrations", "list", check=0).stdout

    with store_of(tmp_path) as store:
        (row,) = store.calibrations()
        assert fitted_now(row).tuning.decode == pytest.approx(document["tuning"]["decode"])
        assert len(measured_of(row.document).held_back) == 1
        assert {run.id for run in store.runs()} == set(document["runs"])
        found = find_calibration(store, read_host(), "qwen3-8b", "vllm", "awq")
        assert found.match == "exact"
        assert found.tuning.decode == pytest.approx(document["tuning"]["decode"])

    assert document["id"] in skep("calibrations", "forget", document["id"][:12], check=0).stderr
    gone = skep("calibrations", "show", check=2)
    assert "nothing was calibrated yet" in gone.stderr


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (("--levels", "1,8"), "C=8 is beyond the 2 slots"),
        (("--levels", "2,4"), "--levels `2,4` is not 1 and one more"),
        (("--model", "fake-modle"), "did you mean `fake-model`?"),
        (("--budget", "1ms"), "the budget ended before C="),
    ],
)
def test_what_cannot_be_calibrated_is_said_in_one_line_and_nothing_is_kept(skep, tmp_path, extra, said):
    with FakeEngine(slots=2, token_ms=1) as engine:
        done = skep("calibrate", "--url", engine.url, *WHAT, *extra)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    if (tmp_path / "data" / "skep").exists():
        with store_of(tmp_path) as store:
            assert store.calibrations() == []
            assert store.runs() == []


@pytest.mark.parametrize(
    ("args", "said"),
    [((), "skep is not running"), (("--url", "http://127.0.0.1:9"), "is something serving at http://127.0.0.1:9?")],
)
def test_without_an_endpoint_the_way_to_one_is_told(skep, args, said):
    assert said in skep("calibrate", *args, check=1).stderr


def test_failing_requests_end_it_and_nothing_is_kept(skep, tmp_path):
    with FakeEngine(slots=2, token_ms=1, ctx=300) as engine:
        done = skep("calibrate", "--url", engine.url, *WHAT, "--levels", "1", "--budget", "40s", "--prompt-tokens", 600)
    assert done.returncode == 1
    assert "--prompt-tokens" in done.stderr
    with store_of(tmp_path) as store:
        assert (store.calibrations(), store.runs()) == ([], [])


def test_ctrl_c_leaves_nothing_behind(env, tmp_path):
    with FakeEngine(slots=2, token_ms=20) as engine:
        argv = [sys.executable, "-m", "skep", "calibrate", "--url", engine.url, *WHAT]
        child = subprocess.Popen(argv, env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        engine.wait_for(running=2, timeout_s=60)  # past the warm-up's first request
        child.send_signal(signal.SIGINT)
        _, told = child.communicate(timeout=20)
    assert child.returncode == 130
    assert "nothing was stored" in told
    with store_of(tmp_path) as store:
        assert (store.calibrations(), store.runs()) == ([], [])


def rows(concurrency, runs=2, **changes):
    values = {"kind": "fix", "status": 200, "prompt_tokens": 50, "output_tokens": 32, "finish_reason": "length"}
    times = {"first_token_s": 0.1, "last_token_s": 1.0, "arrivals_s": (0.1, 1.0)}
    return [
        Request(concurrency, repeat, index, started_s=0.0, ended_s=1.0, **values | times | changes)
        for repeat in range(runs)
        for index in range(6)
    ]


@pytest.mark.parametrize(
    ("found", "limited", "said"),
    [
        (rows(1), {(1, 0), (1, 1)}, "the client was the limit at C=1"),
        (rows(1, runs=1), (), "measured once only"),
        (rows(1)[:8], (), "measured once only"),
        (rows(1, queued_ms=400.0), (), "waited for a slot"),
        (rows(1, error_kind="http_500", error="boom"), (), "12 of 12 requests failed: boom"),
    ],
    ids=["client-limited", "one run", "a run cut short", "queueing", "failures"],
)
def test_a_measurement_that_would_spoil_the_fit_is_refused(found, limited, said):
    plan = CalibrationPlan(None).decoding()
    summary = SweepSummary("r", levels_of(found, limited), None, None, None, client_limited=bool(limited))
    with pytest.raises((UserError, EndpointError), match=said):
        check(plan, summary, found)


def test_a_slow_engine_gets_shorter_answers():
    plan = CalibrationPlan(8, budget_s=300.0)
    assert plan.paced(0.005).answer_tokens == 192
    assert 32 <= plan.paced(0.05).answer_tokens < 192
    assert plan.paced(2.0).answer_tokens == 32


def endpoint_told(**engine):
    from skep.bench.endpoint import Endpoint
    from skep.wire.heads import parse_url

    origin, _ = parse_url(engine.pop("url", "http://127.0.0.1:8000"))
    return Endpoint(origin, "/v1", engine.pop("model", "qwen3-8b"), engine=engine)


def test_a_simulated_hive_tells_what_it_simulates():
    about = "simulated: qwen3.6-35b-a3b AWQ 4-bit, KV FP8 e5m2, mtp n=3, 2 x TP=2 + EP=2 on 4x rtx-3090, as vllm"
    told = {"replicas": 2, "slots": 8, "engine": about, "simulated": True}
    found = describe(CalibrateOptions(), endpoint_told(model="qwen3.6-35b-a3b", **told), read_host(NvidiaReport()))
    setup = found.setup
    assert (setup.model.id, setup.quant.id, setup.kv.id) == ("qwen3.6-35b-a3b", "awq", "fp8_e5m2")
    assert (str(setup.layout), str(setup.spec), setup.engine) == ("2 x TP=2 + EP=2", "mtp n=3", "vllm")
    assert (setup.slots, found.capacity, len(found.rig.cards)) == (4, 8, 4)


def test_flags_and_the_endpoints_words_make_a_setup():
    host = read_host(NvidiaReport())
    wishes = CalibrateOptions(gpu="2x rtx-3090", quant="awq")
    found = describe(wishes, endpoint_told(engine="vllm", slots=16), host)
    assert (str(found.setup.layout), found.setup.engine, found.capacity) == ("TP=2", "vllm", 16)
    split = describe(CalibrateOptions(gpu="2x rtx-3090", quant="q4_k_m"), endpoint_told(engine="llamacpp"), host)
    assert (split.setup.layout.pp, split.capacity, split.setup.slots) == (2, None, None)
    cpu = describe(
        CalibrateOptions(bandwidth=20.0, quant="q4_k_m"), endpoint_told(engine="xllamacpp 1", slots=4, replicas=2), host
    )
    assert [card.bandwidth_gbs for card in cpu.rig.cards] == [10.0, 10.0]


@pytest.mark.parametrize(
    ("wishes", "told", "said"),
    [
        (
            CalibrateOptions(gpu="rtx-3090"),
            {"engine": "vllm"},
            "how the weights of `qwen3-8b` are quantized is not known",
        ),
        (CalibrateOptions(gpu="rtx-3090", quant="awq"), {"engine": "?"}, "does not say which engine"),
        (CalibrateOptions(geometry="qwen9-8b"), {"engine": "vllm"}, "no model is called `qwen9-8b`"),
        (CalibrateOptions(gpu="rtx-3099", quant="awq"), {"engine": "vllm"}, "no GPU is called `rtx-3099`"),
        (CalibrateOptions(engine="vlm"), {}, "--engine `vlm` is not known"),
        (CalibrateOptions(quant="q0"), {"engine": "vllm"}, "no quantization is called `q0`"),
        (
            CalibrateOptions(gpu="rtx-3090", quant="awq", tp=2),
            {"engine": "vllm"},
            "TP=2 takes 2 cards, `rtx-3090` has 1 card",
        ),
        (CalibrateOptions(quant="awq"), {"engine": "vllm", "url": "http://10.0.0.7:8000"}, "is not on this machine"),
        (
            CalibrateOptions(quant="awq", gpu="rtx-3090"),
            {"engine": "vllm", "model": "mine"},
            "no model of the catalogue",
        ),
    ],
)
def test_what_would_be_a_guess_or_makes_no_sense_is_asked_for(wishes, told, said):
    with pytest.raises(UserError, match=said):
        describe(wishes, endpoint_told(**told), read_host(NvidiaReport()))


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(300)
def test_the_embedded_engine_is_calibrated_on_the_cpu(skep):
    """How near it comes depends on what else the machine does; that all of it works does not."""
    skep("up", "--embedded", "--slots", 2, "--threads", 1, "--port", 0, "-d", check=0)
    run = ("calibrate", "--levels", "1,2", "--prompt-tokens", 128, "--budget", "150s", "--json")
    document = json.loads(skep(*run, timeout=240, check=0).stdout)
    assert (document["model"], document["engine"]) == ("smollm2-135m", "llamacpp")
    assert "CPU" in document["rig"]
    assert document["tuning"]["batch"] is not None
    assert not document["simulated"]
