"""A tuning that is taken up again foresees what it foresaw, whatever has changed on the machine meanwhile."""

from dataclasses import replace

from skep.cli.tune_ground import Wishes
from skep.cli.tuning import prepare, prepare_again
from skep.store.database import open_store
from skep.store.tunings import TuningStore


def test_what_is_foreseen_is_kept_with_the_tuning(tmp_path, monkeypatch):
    for name in ("DATA", "STATE", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    ready = prepare(Wishes("qwen3.6-27b", gpu="2x rtx-3090", simulate=True, budget="8h", seed=1))
    with open_store(tmp_path / "skep.sqlite3") as store:
        kept = TuningStore(store)
        id_ = kept.begin(replace(ready.tuning, skep_version="1"))
        again = prepare_again(kept.tuning(id_))
    assert again.base == ready.base
    for knob in ready.tuning.knobs:
        for value in knob.values:
            config = ready.tuning.baseline.turned({knob.name: value})
            assert again.terrain.foresee(config) == ready.terrain.foresee(config)
            assert again.terrain.refusal(config) == ready.terrain.refusal(config)
            assert again.terrain.start_s(config) == ready.terrain.start_s(config)
            assert again.terrain.spare_bytes(config) == ready.terrain.spare_bytes(config)
