"""Which stored calibration a plan gets: the nearest, then the newest; fitted anew when the planner has changed."""

from dataclasses import replace

import pytest

from skep.catalog.gpus import device
from skep.catalog.machine import Gpu
from skep.catalog.models import geometry
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
from skep.host.facts import read_host
from skep.host.nvidia import NvidiaReport
from skep.planner.calibration import CalibrationData, Fitted, MeasuredLevel
from skep.planner.quants import KV_TYPES, QUANTS
from skep.planner.setup import CardLink, Layout, Rig, Setup, Speculation
from skep.planner.step import UNTUNED
from skep.store.database import open_store
from skep.units import Interval

HOST = replace(read_host(NvidiaReport()), gpus=(Gpu(0, "NVIDIA GeForce RTX 3090", 24 << 30),))
NVLINK = CardLink("nvlink", 56.0)
RIG = Rig((device("rtx-3090"),) * 2, None, ((0, 1, NVLINK),), "2x rtx-3090")


def exactly(value):
    return Interval(value, value, value)


def seen(concurrency, tpot_s, inputs=60.0):
    return MeasuredLevel(concurrency, inputs, 192.0, exactly(tpot_s), exactly(0.2), exactly(concurrency / tpot_s), 4)


MEASURED = CalibrationData(seen(1, 0.010), seen(8, 0.014), seen(1, 0.010, 1024.0), (seen(4, 0.012),))


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "skep.sqlite3") as opened:
        yield opened


def keep(store, name, *, model="qwen3-8b", quant="awq", engine="vllm", decode=1.2, at=1000.0, **changes):
    setup = Setup(geometry(model), QUANTS[quant], KV_TYPES["bf16"], engine, Layout(tp=2), slots=8,
                  spec=Speculation("mtp", 3))  # fmt: skip
    fitted = Fitted(exactly(decode), exactly(0.8), exactly(1.5))
    told = {"where": host_key(HOST), "simulated": False, "more": {"runs": ["r1"]}} | changes
    row = calibration_for(setup, RIG, MEASURED, fitted, HOST, name=name, at=at, **told)
    store.append_calibration(row)
    return row


def test_a_calibration_survives_the_store_whole(store):
    keep(store, "c-1")
    (row,) = store.calibrations()
    assert measured_of(row.document) == MEASURED
    assert rig_of(row.document) == RIG
    setup = setup_of(row.document)
    assert (setup.model, setup.quant, setup.layout) == (geometry("qwen3-8b"), QUANTS["awq"], Layout(tp=2))
    assert setup.spec == Speculation("mtp", 3)
    assert fitted_now(row).tuning.decode == 1.2


def test_the_nearest_wins_then_the_newest(store):
    def match(model="qwen3-8b", engine="vllm", quant="awq"):
        found = find_calibration(store, HOST, model, engine, quant, now=2000.0)
        return found and (found.match, found.calibration.id)

    assert match() is None
    keep(store, "of-14b", model="qwen3-14b", at=900.0)
    assert match() == ("other model", "of-14b")
    keep(store, "in-fp8", quant="fp8", at=800.0)
    assert match() == ("other quant", "in-fp8")
    keep(store, "first", at=700.0)
    keep(store, "second", at=750.0)
    assert match() == ("exact", "second")
    assert match(quant=None) == ("exact", "in-fp8")
    assert match(engine="llamacpp") is None
    store.delete_calibrations(["second"])
    assert match() == ("exact", "first")


def test_another_machine_and_a_simulated_one_count_for_nothing(store):
    keep(store, "simulated", simulated=True)
    keep(store, "elsewhere", where="http://10.0.0.7:8000")
    assert find_calibration(store, HOST, "qwen3-8b", "vllm", "awq") is None
    assert find_calibration(store, "http://10.0.0.7:8000", "qwen3-8b", "vllm", "awq").calibration.id == "elsewhere"


def test_a_plan_is_told_what_it_uses_and_how_old_that_is(store):
    keep(store, "c-1", at=1000.0)
    exact = find_calibration(store, HOST, "qwen3-8b", "vllm", "awq", now=1000.0 + 3 * 86400)
    assert exact.age_s == 3 * 86400
    assert exact.same_model
    assert exact.rig == RIG
    assert exact.sentence == (
        "calibrated on this machine 3 d 00 h ago (vllm, TP=2 on 2x rtx-3090): steps take 1.20x (± 0 %) as long as "
        "predicted, further sequences add 0.80x (± 0 %), prompts take 1.50x (± 0 %)"
    )
    other = find_calibration(store, HOST, "qwen3-14b", "vllm", "awq", now=1001.0)
    assert "with qwen3-8b, not the model planned" in other.sentence
    assert not other.same_model


def test_plans_are_computed_with_the_calibration_of_their_engine(store):
    keep(store, "c-1")
    basis_of = calibrated_basis(store.path, HOST, "qwen3-8b", "awq")
    assert (basis_of("vllm").tuning.decode, basis_of("vllm").calibrated) == (1.2, True)
    assert "calibrated on this machine" in basis_of("vllm").note
    assert (basis_of("sglang").tuning, basis_of("sglang").calibrated, basis_of("sglang").note) == (UNTUNED, False, "")
    other = calibrated_basis(store.path, HOST, "qwen3-14b")("vllm")
    assert (other.tuning.decode, other.calibrated) == (1.2, False)
    assert calibrated_rig(store.path, HOST) == RIG
    nowhere = store.path.with_name("none.sqlite3")
    assert calibrated_basis(nowhere, HOST, "qwen3-8b")("vllm").tuning == UNTUNED
    assert calibrated_rig(nowhere, HOST) is None


def test_an_update_of_driver_or_kernel_is_the_same_machine_and_another_card_is_not():
    updated = replace(HOST, os="Linux 99", python="3.99", driver_version="999", memory_available_bytes=5)
    assert host_key(updated) == host_key(HOST)
    assert host_key(replace(HOST, gpus=())) != host_key(HOST)
    assert host_key(replace(HOST, cpu_cores=HOST.cpu_cores + 1)) != host_key(HOST)


def test_factors_are_fitted_anew_where_the_planner_has_changed(store):
    """They correct predictions: of a planner that predicts something else, other factors are wanted."""
    row = keep(store, "c-1", decode=7.0)
    stale = replace(row, document={**row.document, "basis": "of another version"})
    assert fitted_now(row).tuning.decode == 7.0
    assert fitted_now(stale).tuning.decode != 7.0
    broken = replace(stale, document={**stale.document, "setup": {"engine": "vllm"}})
    assert fitted_now(broken).tuning.decode == 7.0
