"""A tuning that is taken up again foresees what it foresaw, whatever has changed on the machine meanwhile."""

from dataclasses import replace

import pytest

from skep.cli.tune_setup import prepare, prepare_again
from skep.cli.tune_stored import free_name, write_preset, written_before
from skep.cli.tune_target import TuneOptions
from skep.store.database import open_store
from skep.tuner.records import StageDecision, TuneStage
from skep.tuner.store import TuningStore
from skep.units import Interval


@pytest.fixture
def ready(tmp_path, monkeypatch):
    for name in ("DATA", "STATE", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    return prepare(TuneOptions("qwen3.6-27b", gpu="2x rtx-3090", simulate=True, budget="8h", seed=1))


def test_what_is_foreseen_is_kept_with_the_tuning(ready, tmp_path):
    with open_store(tmp_path / "skep.sqlite3") as store:
        kept = TuningStore(store)
        id_ = kept.begin(replace(ready.tuning, skep_version="1"))
        again = prepare_again(kept.tuning(id_))
    assert again.base == ready.base
    for knob in ready.tuning.knobs:
        for value in knob.values:
            config = ready.tuning.baseline.turned({knob.name: value})
            assert again.terrain.predict(config) == ready.terrain.predict(config)
            assert again.terrain.refusal(config) == ready.terrain.refusal(config)
            assert again.terrain.start_s(config) == ready.terrain.start_s(config)
            assert again.terrain.spare_bytes(config) == ready.terrain.spare_bytes(config)


def test_stopped_and_taken_up_and_stopped_again_the_same_best_is_one_preset(ready):
    tuning = replace(ready.tuning, id="20261116-000000-abcdef")
    better = tuning.baseline.turned({"graphs": True})
    stages = [
        TuneStage(0, (), tuning.baseline, StageDecision.BASELINE, "2 starts", Interval(95.0, 100.0, 105.0)),
        TuneStage(
            1,
            better.changes_from(tuning.baseline),
            better,
            StageDecision.ACCEPTED,
            "+40 %",
            Interval(135.0, 140.0, 145.0),
        ),
    ]
    name = free_name(tuning)
    path = write_preset(tuning, stages, name)
    assert written_before(tuning, stages, (name,)) == name
    path.write_text(path.read_text() + "# my own note\n")
    assert written_before(tuning, stages, (name,)) is None
    assert free_name(tuning) != name
