"""Others' rows of a layout correct its prediction: as far as they can be trusted, and never
against a measurement.
"""

import csv
import json
import math
from pathlib import Path
from statistics import mean

import pytest
from msgspec.structs import replace

from skep.catalog.models import geometry
from skep.config.rigs import parse_rig
from skep.planner.correction import correction_by
from skep.planner.published import is_measured, published_rows, rows_of_layout
from skep.planner.ranking import Basis, band, correction_of
from skep.planner.setup import Layout, Setup, Speculation, find_kv, find_quant
from skep.planner.step import Constants, StepTuning, published_constants
from skep.planner.validation import Unpredictable, predict, read_case

DATA = Path(__file__).parents[1] / "data"
WITHOUT = json.loads((DATA / "fitted_without.json").read_text(encoding="utf-8"))
MIXTURE = Setup(
    geometry("qwen3.6-35b-a3b"),
    find_quant("awq"),
    find_kv("bf16"),
    "vllm",
    Layout(tp=2, ep=2),
    slots=4,
    vision=False,
)
TWO = parse_rig("2x rtx-3090")


def factor(setup, rig=TWO, agents=4, basis=None):
    correction = correction_of(setup, rig, basis or Basis(published_constants()), agents)
    return None if correction is None else correction.factor


def test_a_layout_slower_than_predicted_is_corrected_and_another_rig_is_not():
    assert 1.1 < factor(MIXTURE) < 1.5
    assert factor(MIXTURE, parse_rig("2x rtx-5090")) is None
    assert factor(replace(MIXTURE, layout=Layout(tp=2, pp=1)), parse_rig("2x rtx-3080-ti")) is None
    assert factor(replace(MIXTURE, graphs=False)) is None


def test_formats_and_drafts_of_a_layout_share_its_correction():
    """Otherwise those that nobody measured would go first."""
    assert factor(replace(MIXTURE, quant=find_quant("fp8"))) > 1.1
    assert factor(replace(MIXTURE, spec=Speculation("mtp", 1))) > 1.1


def test_a_calibration_of_this_machine_goes_before_rows_of_others():
    basis = Basis(
        published_constants(), StepTuning(decode=1.2, rests_on="calibrated"), calibrated=True
    )
    assert factor(MIXTURE, basis=basis) is None


def test_a_row_over_nvlink_says_nothing_of_cards_on_pcie():
    rows = published_rows("qwen3-coder-30b-a3b")
    setup = replace(MIXTURE, model=geometry("qwen3-coder-30b-a3b"), layout=Layout(tp=2))
    bridged = rows_of_layout(setup, parse_rig("2x rtx-3090: nvlink"))
    plain = rows_of_layout(setup, TWO)
    assert {row.link for row in rows} >= {"nvlink", "pcie"}
    assert {row.link for row in bridged} <= {"nvlink", None}
    assert {row.link for row in plain} <= {"pcie", None}
    assert is_measured(replace(setup, quant=find_quant("int4")), TWO)


@pytest.mark.slow
@pytest.mark.parametrize(("same_source", "largest_ratio"), [(True, 0.8), (False, 1.05)])
def test_over_all_published_rows_predictions_come_nearer_or_stay_where_they_are(
    same_source, largest_ratio
):
    """Each row is corrected by the others of its source, or by other sources alone; errors are
    means of setups.
    """
    plain: dict[object, list[float]] = {}
    corrected: dict[object, list[float]] = {}
    with (DATA / "published_points.csv").open(encoding="utf-8") as file:
        for number, cells in enumerate(csv.DictReader(file), 2):
            try:
                case = read_case(number, cells)
                fold = WITHOUT.get(case.source)
                if fold is not None:
                    constants = Constants(**fold)
                else:
                    constants = published_constants()
                rows = [
                    row
                    for row in rows_of_layout(case.setup, case.rig)
                    if not row.source.startswith("preset ")
                    and (row.source == case.source) is same_source
                    and row.tok_s != case.published
                ]
                agents = case.load.concurrency
                half = math.log(band(case.setup, case.card, agents).high)
                correction_found = correction_by(
                    rows, case.setup, case.rig, constants, agents, half
                )
                if correction_found is None:
                    continue
                figures = (
                    predict(case, constants),
                    predict(case, constants, correction_found.tuning),
                )
            except Unpredictable:
                continue
            key = (
                case.source,
                str(case.setup.layout),
                case.setup.model.id,
                case.card.id,
                str(case.setup.spec),
            )
            plain.setdefault(key, []).append(abs(math.log(figures[0] / case.published)))
            corrected.setdefault(key, []).append(abs(math.log(figures[1] / case.published)))
    before = mean(map(mean, plain.values()))
    after = mean(map(mean, corrected.values()))
    assert len(plain) > 20
    assert after <= largest_ratio * before


def test_agents_that_wait_for_a_slot_do_not_change_what_a_row_says():
    assert factor(MIXTURE, agents=8) == factor(MIXTURE, agents=4)
