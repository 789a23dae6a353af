"""`skep calibrate` as a user runs it: an engine with known times, likely misuse, Ctrl-C; what a
plan gets of it.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest
from in_process import call, refused
from installation import installation
from msgspec.structs import replace

from skep.bench.calibration import (
    CalibrationPlan,
    SetupFlags,
    calibration_from_sweep,
    check,
    describe,
)
from skep.bench.endpoint import Endpoint, find_endpoint
from skep.bench.metrics import RunMarks, SweepSummary, levels_of
from skep.bench.sweep import SweepPlan, run_sweep
from skep.bench.tasks import Workload
from skep.catalog.gpus import Gpu, device
from skep.catalog.models import geometry
from skep.deploy.commands import rests_on
from skep.deploy.stored_calibration import (
    calibrated_basis,
    calibrated_rig,
    calibration_for,
    find_calibration,
    fitted_now,
    host_key,
    measured_of,
    rig_of,
    setup_of,
)
from skep.errors import EndpointError, UserError
from skep.host.facts import NvidiaReport, read_host
from skep.paths import user_paths
from skep.planner.calibration import CalibrationData, Fitted, MeasuredLevel
from skep.planner.candidates import PlanGoal
from skep.planner.choose import choose
from skep.planner.setup import KV_TYPES, QUANTS, CardLink, Layout, Rig, Setup, Speculation
from skep.planner.step import UNTUNED
from skep.store.database import open_store
from skep.store.records import Request
from skep.testing.process import FakeEngine
from skep.units import Interval
from skep.wire.heads import parse_url

WHAT = ("--geometry", "qwen3-8b", "--engine", "vllm", "--gpu", "rtx-3090", "--quant", "awq")


@pytest.fixture
def store(paths):
    with open_store(paths.store) as opened:
        yield opened


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """The document of a calibration, in an installation that has no other.

    10 ms a token alone, 16 with four; a millisecond a prompt token: long beside what a busy
    machine adds.
    """
    options = ("--levels", "1,4", "--prompt-tokens", 96, "--budget", "40s", "--json")
    with (
        installation(tmp_path_factory.mktemp("calibrated")),
        FakeEngine(slots=4, token_ms_curve="1:10,4:16", prefill_tok_s=1000) as engine,
    ):
        yield call("calibrate", "--url", engine.url, *WHAT, *options, check=0).json


@pytest.fixture
def calibrated_store(calibrated):
    with open_store(user_paths(os.environ).store) as opened:
        yield opened


@pytest.mark.slow
def test_a_calibration_says_in_words_how_long_steps_take(calibrated):
    assert calibrated["words"].startswith("steps take ")


@pytest.mark.slow
def test_a_calibrated_planner_predicts_the_levels_that_were_measured(calibrated):
    levels = calibrated["levels"]
    assert [(level["concurrency"], level["fitted"]) for level in levels] == [(1, True), (4, True)]
    speed_alone = levels[0]["task_tok_s"]
    assert levels[0]["predicted_after"] == pytest.approx(speed_alone, rel=0.01)


@pytest.mark.slow
def test_a_calibration_has_factors_of_decoding_and_of_further_sequences(calibrated):
    assert 0.1 <= calibrated["tuning"]["decode"] <= 10
    # The planner expects next to nothing of three more.
    assert calibrated["tuning"]["batch"] > 3


@pytest.mark.slow
def test_a_calibration_is_listed_and_shown(calibrated):
    rows = call("calibrations", "list", "--json", check=0).json
    assert [row["id"] for row in rows] == [calibrated["id"]]
    assert calibrated["id"] in call("calibrations", "list", check=0).out
    page = call("calibrations", "show", check=0).out
    assert "qwen3-8b awq, TP=1 on rtx-3090, vllm: steps take" in page


@pytest.mark.slow
def test_a_stored_calibration_has_the_times_of_the_engine(calibrated, calibrated_store):
    (row,) = calibrated_store.calibrations()
    assert fitted_now(row).tuning.decode == pytest.approx(calibrated["tuning"]["decode"])
    measured = measured_of(row.document)
    assert measured.alone.tpot_s.estimate == pytest.approx(0.010, rel=0.3)
    assert measured.crowd.tpot_s.estimate == pytest.approx(0.016, rel=0.3)
    prompt_s = measured.prompts.input_tokens / 1000
    assert measured.prompts.ttft_s.estimate == pytest.approx(prompt_s, rel=0.35)


@pytest.mark.slow
def test_the_runs_of_a_calibration_are_stored_as_such(calibrated, calibrated_store):
    kinds = {run.id: run.kind for run in calibrated_store.runs()}
    assert kinds == dict.fromkeys(calibrated["runs"], "calibrate")


@pytest.mark.slow
def test_a_stored_calibration_is_found_for_a_plan(calibrated, calibrated_store):
    calibration = find_calibration(calibrated_store, read_host(), "qwen3-8b", "vllm", "awq")
    assert calibration.calibrated
    assert calibration.tuning.decode == pytest.approx(calibrated["tuning"]["decode"])


def test_a_calibration_is_forgotten_by_the_beginning_of_its_name(store):
    keep(store, "calibration-of-an-engine")
    done = call("calibrations", "forget", "calibration-", check=0)
    assert "calibration-of-an-engine" in done.err
    assert "there are no calibrations yet" in refused("calibrations", "show")


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(slots=2, token_ms=1, ctx=300) as running:
        yield running


@pytest.mark.parametrize(
    ("extra", "code", "message"),
    [
        (("--levels", "1,8"), 2, "C=8 is beyond the 2 slots"),
        (("--levels", "2,4"), 2, "--concurrency `2,4` is not 1 and one higher level"),
        (("--model", "fake-modle"), 2, "did you mean `fake-model`?"),
        (("--budget", "1ms"), 2, "the budget ended before C="),
        (("--levels", "1", "--budget", "40s", "--prompt-tokens", 600), 1, "--prompt-tokens"),
    ],
)
def test_what_cannot_be_calibrated_is_said_in_one_line_and_nothing_is_kept(
    engine, store, extra, code, message
):
    assert message in refused("calibrate", "--url", engine.url, *WHAT, *extra, code=code)
    assert (store.calibrations(), store.runs()) == ([], [])


def test_without_an_endpoint_the_way_to_one_is_told(paths):
    assert "skep is not running" in refused("calibrate", code=1)
    nobody = "http://127.0.0.1:9"
    assert f"is a server running at {nobody}?" in refused("calibrate", "--url", nobody, code=1)


def test_ctrl_c_leaves_nothing_behind(store):
    with FakeEngine(slots=2, token_ms=20) as engine:
        argv = [sys.executable, "-m", "skep", "calibrate", "--url", engine.url, *WHAT]
        child = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
        engine.wait_for(running=2, timeout_s=60)  # past the warm-up's first request
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=20)
    assert child.returncode == 130
    assert "nothing was stored" in errors
    assert (store.calibrations(), store.runs()) == ([], [])


def rows(concurrency, runs=2, **changes):
    values = {
        "kind": "fix",
        "status": 200,
        "prompt_tokens": 50,
        "output_tokens": 32,
        "finish_reason": "length",
    }
    times = {"first_token_s": 0.1, "last_token_s": 1.0, "arrivals_s": (0.1, 1.0)}
    return [
        Request(concurrency, repeat, index, started_s=0.0, ended_s=1.0, **values | times | changes)
        for repeat in range(runs)
        for index in range(6)
    ]


@pytest.mark.parametrize(
    ("conditions", "limited", "message"),
    [
        (rows(1), {(1, 0), (1, 1)}, "the client was the limit at C=1"),
        (rows(1, runs=1), (), "measured once"),
        (rows(1)[:8], (), "measured once"),
        (rows(1, queued_ms=400.0), (), "waited for a slot"),
        (rows(1, error_kind="http_500", error="boom"), (), "12 of 12 requests failed: boom"),
    ],
    ids=["client-limited", "one run", "a run cut short", "queueing", "failures"],
)
def test_a_measurement_that_would_spoil_the_fit_is_refused(conditions, limited, message):
    plan = CalibrationPlan(None).decoding()
    summary = SweepSummary(
        "r",
        levels_of(conditions, RunMarks(dict.fromkeys(limited, "slow"))),
        client_limited=bool(limited),
    )
    with pytest.raises((UserError, EndpointError), match=message):
        check(plan, summary, conditions)


def test_a_slow_engine_gets_shorter_answers():
    plan = CalibrationPlan(8, budget_s=300.0)
    assert plan.paced(0.005).answer_tokens == 192
    assert 32 <= plan.paced(0.05).answer_tokens < 192
    assert plan.paced(2.0).answer_tokens == 32


def endpoint_told(**engine):
    origin, _ = parse_url(engine.pop("url", "http://127.0.0.1:8000"))
    return Endpoint(origin, "/v1", engine.pop("model", "qwen3-8b"), engine=engine)


def described(flags, **facts):
    return describe(flags, endpoint_told(**facts), read_host(NvidiaReport()))


def test_flags_and_the_endpoints_words_make_a_setup_and_flags_win():
    """A deployment of skep tells how it was started."""
    description = described(SetupFlags(gpu="2x rtx-3090", quant="awq"), engine="vllm", slots=16)
    assert (str(description.setup.layout), description.setup.engine, description.capacity) == (
        "TP=2",
        "vllm",
        16,
    )
    split = described(SetupFlags(gpu="2x rtx-3090", quant="q4_k_m"), engine="llamacpp")
    assert (split.setup.layout.pp, split.capacity, split.setup.slots) == (2, None, None)
    cpu = described(SetupFlags(quant="q4_k_m"), engine="xllamacpp 1", slots=4, replicas=2)
    assert (len(cpu.rig.cards), cpu.notes[-1].rpartition(", ")[2]) == (
        2,
        "memory measured by copying",
    )
    started = {
        "checkpoint": "Qwen/Qwen3-8B-AWQ",
        "kv": "fp8_e5m2",
        "tp": 2,
        "spec": "mtp:3",
        "graphs": False,
    }
    facts = {"engine": "vllm 0.24.0", "slots": 64, "setup": started}
    setup = described(SetupFlags(gpu="4x rtx-3090"), **facts).setup
    assert (setup.quant.id, setup.kv.id, str(setup.layout), str(setup.spec)) == (
        "awq",
        "fp8_e5m2",
        "TP=2",
        "mtp n=3",
    )
    assert not setup.graphs
    four_cards = described(SetupFlags(gpu="4x rtx-3090", tp=4, kv="bf16"), **facts).setup
    assert (str(four_cards.layout), four_cards.kv.id) == ("TP=4", "bf16")


def test_a_sweep_of_such_a_deployment_is_a_measurement_that_plans_rest_on(store):
    """Of the fake engine, which is here said to be one that skep started on two cards."""
    plan = SweepPlan(
        (1,),
        runs=2,
        tasks=4,
        quick_warm_up=True,
        workload=Workload(max_tokens=16, fixed_output=True),
    )
    with FakeEngine(slots=2, token_ms=10) as fake:
        endpoint_found = asyncio.run(find_endpoint(fake.url, None))
        facts = {
            "engine": "vllm 0.24.0",
            "slots": 2,
            "setup": {"checkpoint": "Qwen/Qwen3-8B-AWQ", "tp": 2},
        }
        endpoint = replace(endpoint_found, model="fake-model", engine=facts)
        summary = asyncio.run(run_sweep(plan, endpoint, store, HOST))
    rows = [row for row in store.requests(summary.run_id) if row.level]
    arguments = plan, replace(endpoint, model="qwen3-8b"), summary, rows
    host = replace(HOST, gpus=HOST.gpus * 2)
    record = calibration_from_sweep(*arguments, host)
    assert record is not None
    store.append_calibration(record)
    calibration = find_calibration(store, host, "qwen3-8b", "vllm", "awq")
    assert calibration is not None
    assert calibration.tuning.rests_on == "measured"
    assert calibration.note.startswith(
        "measured on this machine a moment ago (vllm 0.24.0, TP=2 on "
    )
    assert "prompts" not in calibration.note  # too short to tell
    keep(store, "c-1", where=host_key(host))
    assert find_calibration(store, host, "qwen3-8b", "vllm", "awq").tuning.rests_on == "calibrated"
    assert (
        calibration_from_sweep(plan, endpoint_told(engine="vllm", slots=2), summary, rows, host)
        is None
    )


@pytest.mark.parametrize(
    ("options", "facts", "message"),
    [
        (
            SetupFlags(gpu="rtx-3090"),
            {"engine": "vllm"},
            "does not know how the weights of `qwen3-8b` are quantized",
        ),
        (SetupFlags(gpu="rtx-3090", quant="awq"), {"engine": "?"}, "does not say which engine"),
        (SetupFlags(geometry="qwen9-8b"), {"engine": "vllm"}, "no model is called `qwen9-8b`"),
        (
            SetupFlags(gpu="rtx-3099", quant="awq"),
            {"engine": "vllm"},
            "no GPU is called `rtx-3099`",
        ),
        (SetupFlags(engine="vlm"), {}, "--engine `vlm` is not known"),
        (SetupFlags(), {"simulated": True}, "a simulated endpoint has the plan's own speed"),
        (SetupFlags(quant="q0"), {"engine": "vllm"}, "no quantization is called `q0`"),
        (
            SetupFlags(gpu="rtx-3090", quant="awq", tp=2),
            {"engine": "vllm"},
            "TP=2 takes 2 cards, `rtx-3090` has 1 card",
        ),
        (
            SetupFlags(quant="awq"),
            {"engine": "vllm", "url": "http://10.0.0.7:8000"},
            "is not on this machine",
        ),
        (
            SetupFlags(quant="awq", gpu="rtx-3090"),
            {"engine": "vllm", "model": "mine"},
            "the catalogue has no model",
        ),
    ],
)
def test_what_would_be_a_guess_or_makes_no_sense_is_asked_for(options, facts, message):
    with pytest.raises(UserError, match=message):
        described(options, **facts)


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(300)
def test_the_embedded_engine_is_calibrated_on_the_cpu(skep):
    """How near it comes depends on what else the machine does; that all of it works does not."""
    skep("up", "--embedded", "--slots", 2, "--threads", 1, "--port", 0, "-d", check=0)
    run = ("calibrate", "--levels", "1,2", "--prompt-tokens", 128, "--budget", "150s", "--json")
    document = json.loads(skep(*run, check=0).stdout)
    assert (document["model"], document["engine"]) == ("smollm2-135m", "llamacpp")
    assert "CPU" in document["rig"]
    assert document["tuning"]["batch"] is not None
    assert not document["simulated"]


HOST = replace(read_host(NvidiaReport()), gpus=(Gpu(0, "NVIDIA GeForce RTX 3090", 24 << 30),))
NVLINK = CardLink("nvlink", 56.0)
RIG = Rig((device("rtx-3090"),) * 2, None, ((0, 1, NVLINK),), "2x rtx-3090")


def exactly(value):
    return Interval(value, value, value)


def seen(concurrency, tpot_s, inputs=60.0):
    return MeasuredLevel(
        concurrency, inputs, 192.0, exactly(tpot_s), exactly(0.2), exactly(concurrency / tpot_s), 4
    )


MEASURED = CalibrationData(
    seen(1, 0.010), seen(8, 0.014), seen(1, 0.010, 1024.0), (seen(4, 0.012),)
)


def keep(
    store, name, *, model="qwen3-8b", quant="awq", engine="vllm", decode=1.2, at=1000.0, **changes
):
    setup = Setup(
        geometry(model),
        QUANTS[quant],
        KV_TYPES["bf16"],
        engine,
        Layout(tp=2),
        slots=8,
        spec=Speculation("mtp", 3),
    )
    fitted = Fitted(exactly(decode), exactly(0.8), exactly(1.5))
    fields = {"where": host_key(HOST), "simulated": False, "extra": {"runs": ["r1"]}} | changes
    row = calibration_for(setup, RIG, MEASURED, fitted, HOST, name=name, at=at, **fields)
    store.append_calibration(row)
    return row


def test_the_nearest_wins_then_the_newest(store):
    def match(model="qwen3-8b", engine="vllm", quant="awq"):
        calibration = find_calibration(store, HOST, model, engine, quant, now=2000.0)
        return calibration and calibration.tuning.decode

    assert match() is None
    keep(store, "of-14b", model="qwen3-14b", at=900.0, decode=1.1)
    assert match() == 1.1
    keep(store, "in-fp8", quant="fp8", at=800.0, decode=1.2)
    assert match() == 1.2
    keep(store, "first", at=700.0, decode=1.3)
    keep(store, "second", at=750.0, decode=1.4)
    assert match() == 1.4
    assert match(quant=None) == 1.2
    assert match(engine="llamacpp") is None
    store.delete_calibrations(["second"])
    assert match() == 1.3


def test_a_calibration_elsewhere_counts_for_such_cards_and_a_simulated_one_for_none(
    store,
):
    keep(store, "simulated", simulated=True)
    keep(store, "elsewhere", where="http://10.0.0.7:8000")
    setup = ("qwen3-8b", "vllm", "awq")
    assert find_calibration(store, HOST, *setup) is None
    assert find_calibration(store, RIG, *setup).note.startswith("calibrated on such cards ")
    assert find_calibration(store, Rig((device("rtx-4090"),)), *setup) is None


def test_a_calibration_says_which_it_is_and_how_old(store):
    keep(store, "c-1")
    three_days_later = 1000.0 + 3 * 86400
    calibration = find_calibration(store, HOST, "qwen3-8b", "vllm", "awq", now=three_days_later)
    assert calibration.calibrated
    assert calibration.note == (
        "calibrated on this machine 3 d 00 h ago (vllm, TP=2 on 2x rtx-3090): steps take "
        "1.20x (± 0 %) as long as "
        "predicted, further sequences add 0.80x (± 0 %), prompts take 1.50x (± 0 %)"
    )


def test_a_calibration_of_another_model_says_so_and_is_not_one_of_the_model_planned(store):
    keep(store, "c-1")
    calibration = find_calibration(store, HOST, "qwen3-14b", "vllm", "awq", now=1001.0)
    assert "with qwen3-8b, not the model planned" in calibration.note
    assert not calibration.calibrated
    basis = calibrated_basis(store.path, HOST, "qwen3-14b")("vllm")
    assert (basis.tuning.decode, basis.calibrated) == (1.2, False)


def test_a_plan_uses_the_calibration_of_its_engine_alone(store):
    keep(store, "c-1")
    basis_of = calibrated_basis(store.path, HOST, "qwen3-8b", "awq")
    vllm = basis_of("vllm")
    assert (vllm.tuning.decode, vllm.calibrated) == (1.2, True)
    assert "calibrated on this machine" in vllm.note
    sglang = basis_of("sglang")
    assert (sglang.tuning, sglang.calibrated, sglang.note) == (UNTUNED, False, "")


def test_each_plan_says_whether_it_rests_on_a_calibration(store):
    keep(store, "c-1")
    engines = ("vllm", "sglang")
    basis_of = calibrated_basis(store.path, HOST, "qwen3-8b", "awq")
    choice = choose(geometry("qwen3-8b"), RIG, PlanGoal(), engines=engines, basis_of=basis_of)
    assert {(plan.setup.engine, rests_on(plan)) for plan in choice.plans} == {
        ("vllm", "calibrated"),
        ("sglang", "published"),
    }


def test_the_rig_of_a_calibration_is_that_of_the_machine(store):
    keep(store, "c-1")
    assert calibrated_rig(store.path, HOST) == RIG


def test_without_a_store_nothing_is_calibrated(store):
    nowhere = store.path.with_name("none.sqlite3")
    assert calibrated_basis(nowhere, HOST, "qwen3-8b")("vllm").tuning == UNTUNED
    assert calibrated_rig(nowhere, HOST) is None


def test_an_update_of_driver_or_kernel_is_the_same_machine_and_another_card_is_not():
    updated = replace(
        HOST, os="Linux 99", python="3.99", driver_version="999", memory_available_bytes=5
    )
    assert host_key(updated) == host_key(HOST)
    assert host_key(replace(HOST, gpus=())) != host_key(HOST)
    assert host_key(replace(HOST, cpu_cores=HOST.cpu_cores + 1)) != host_key(HOST)


def test_a_stored_calibration_is_whole_and_fitted_anew_for_a_changed_planner(
    store,
):
    """Factors correct predictions: of a planner that predicts something else, other factors are
    wanted.
    """
    keep(store, "c-1", decode=7.0)
    (row,) = store.calibrations()
    assert (measured_of(row.document), rig_of(row.document)) == (MEASURED, RIG)
    setup = setup_of(row.document)
    assert (setup.model, setup.quant, setup.layout) == (
        geometry("qwen3-8b"),
        QUANTS["awq"],
        Layout(tp=2),
    )
    assert setup.spec == Speculation("mtp", 3)
    stale = replace(row, document={**row.document, "basis": "of another version"})
    assert fitted_now(row).tuning.decode == 7.0
    assert fitted_now(stale).tuning.decode != 7.0
    broken = replace(stale, document={**stale.document, "setup": {"engine": "vllm"}})
    assert fitted_now(broken).tuning.decode == 7.0
