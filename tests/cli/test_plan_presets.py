"""`skep plan PRESET`: a preset where a model stands."""

import pytest
from in_process import call, refused

from skep.config.presets import preset_toml, presets_folder, shipped_presets

EAGER = "qwen2.5-coder-32b-2x3090-nvlink"
REPLICAS = "qwen3.6-27b-2x3090-replicas"
pytestmark = pytest.mark.usefixtures("paths")


def document(*words):
    return call("plan", *words, "--json", check=0).json


def test_a_preset_is_planned_on_its_cards_and_their_link():
    (rig,) = document(EAGER)["rigs"]
    assert rig["rig"] == "2x rtx-3090"
    assert rig["link"]["kind"] == "nvlink"


def test_a_preset_has_one_plan_with_its_engine_format_layout_and_memory_share():
    (plan,) = document(EAGER)["plans"]
    assert (plan["engine"], plan["quant"], plan["topology"]["tp"], plan["slots"]) == (
        "vllm",
        "awq",
        2,
        4,
    )
    assert plan["utilization"] == 0.92


def test_an_eager_preset_is_planned_without_graphs_and_with_its_flags():
    (plan,) = document(EAGER)["plans"]
    assert plan["graphs"] is False
    assert "--enforce-eager" in plan["launch"][0]
    assert "--dtype float16" in plan["launch"][0]


def test_the_plan_of_a_preset_is_started_by_the_name_of_the_preset():
    (plan,) = document(EAGER)["plans"]
    assert plan["up"] == f"skep up {EAGER}"


def test_published_figures_stand_beside_what_is_expected_at_the_same_load():
    figures = document(REPLICAS)["preset"]["figures"]
    assert [(figure["concurrency"], figure["published_tok_s"]) for figure in figures[:3]] == [
        (1, 81.8),
        (2, 154.0),
        (4, 225.4),
    ]
    for figure in figures:
        assert figure["lengths_published"]
        assert (figure["input_tokens"], figure["output_tokens"]) == (1024, 1024)
        assert figure["off"] == pytest.approx(
            figure["predicted_tok_s"] / figure["published_tok_s"] - 1, abs=0.001
        )


def test_figures_without_published_lengths_are_marked_in_the_table():
    out = call("plan", EAGER, check=0).out
    assert "(vllm, eager)" in out.splitlines()[0]
    assert "Published beside predicted (not measured here; Local LLM Bench part 2" in out
    assert "*: its author gives no lengths; these are assumed" in out
    assert "*:" not in call("plan", REPLICAS, check=0).out


def test_the_page_of_a_preset_has_the_published_figures_too(tmp_path):
    call("plan", EAGER, "--html", "plan.html", check=0)
    page = (tmp_path / "plan.html").read_text()
    assert "Published, not measured here: Local LLM Bench part 2" in page
    assert "82.0" in page


def test_eager_mode_is_slower_than_the_same_preset_with_graphs(paths):
    folder = presets_folder(paths)
    folder.mkdir(parents=True)
    text = preset_toml(shipped_presets()[EAGER]).replace("graphs = false", "graphs = true")
    (folder / "graphs.toml").write_text(text)
    eager, recorded = (
        document(name)["preset"]["figures"][0]["predicted_tok_s"] for name in (EAGER, "graphs")
    )
    assert recorded > 1.5 * eager


@pytest.mark.parametrize("name", sorted(shipped_presets()))
def test_every_shipped_preset_has_a_plan_on_the_cards_it_was_measured_on(name):
    answer = document(name)
    assert len(answer["plans"]) == 1
    assert answer["plans"][0]["predicted"][0]["effective_tok_s"] > 0
    assert len(answer["preset"]["figures"]) == len(shipped_presets()[name].published)


def test_a_preset_is_planned_for_other_cards_without_its_authors_figures():
    answer = document(REPLICAS, "--gpu", "2x rtx-4090")
    assert answer["rigs"][0]["rig"] == "2x rtx-4090"
    assert answer["preset"]["figures"] == []


def test_a_preset_that_needs_more_cards_than_the_rig_has_is_refused():
    message = refused("plan", REPLICAS, "--gpu", "rtx-3090", code=3)
    assert message.startswith(
        f"the preset `{REPLICAS}` needs 2 cards (2 x TP=1), `rtx-3090` has 1 | "
    )


def test_a_choice_that_the_preset_has_made_cannot_be_pinned_again():
    message = refused("plan", REPLICAS, "--tp", "2")
    assert message.startswith(f"--tp cannot be combined with the preset `{REPLICAS}` | ")


def test_slots_and_lengths_that_are_typed_go_into_plan_and_start_line():
    answer = document(
        EAGER, "--slots", "2", "-c", "2", "--prompt-tokens", "512", "--output-tokens", "128"
    )
    assert answer["goal"]["input_tokens"] == 512
    assert answer["plans"][0]["slots"] == 2
    assert answer["plans"][0]["up"] == f"skep up {EAGER} --slots 2"


def test_one_load_has_one_prediction_and_what_corrects_it_is_said():
    answer = document(REPLICAS)
    levels = {
        level["concurrency"]: level["effective_tok_s"] for level in answer["plans"][0]["predicted"]
    }
    for figure in answer["preset"]["figures"]:
        assert figure["predicted_tok_s"] == pytest.approx(levels[figure["concurrency"]], rel=1e-3)
        assert figure["uncorrected_tok_s"] != figure["predicted_tok_s"]
    out = call("plan", REPLICAS, check=0).out
    assert (
        "PREDICTED is corrected by these very figures, so OFF does not test it; UNCORRECTED "
        "is what"
    ) in out
    plain = call("plan", EAGER, check=0).out
    assert "UNCORRECTED" not in plain


@pytest.mark.parametrize(
    "typed", [("--slots", "4"), ("--context", "4096"), ("--no-graphs",), ("--link", "nvlink")]
)
def test_published_figures_do_not_stand_beside_other_slots_context_or_options(typed):
    assert document(REPLICAS, *typed)["preset"]["figures"] == []


def test_what_is_typed_as_the_preset_has_it_changes_nothing():
    assert document(REPLICAS, "--slots", "2", "--context", "20000")["preset"]["figures"]


def test_that_its_author_ran_it_is_not_said_of_what_was_typed():
    message = refused("plan", REPLICAS, "--context", "262144", "--slots", "2", code=3)
    assert "does not fit" in message
    changed = document("qwen3.6-27b-3090-turboquant", "--no-graphs")["plans"][0]["caveats"][0]
    assert changed.startswith(
        "its author ran it, without what you changed, though by what skep knows "
    )


def test_a_preset_is_headed_by_its_own_context_and_not_by_the_length_of_its_load():
    head = call("plan", REPLICAS, check=0).out.splitlines()[2]
    assert "; 20,000 tokens of context, " in head
    assert "2,048 tokens of context" not in head
    assert (
        call("plan", EAGER, check=0).out.splitlines()[2].endswith("; 8,192 tokens of context each")
    )


def test_the_vision_tower_that_is_asked_for_is_in_the_start_line_and_is_started(paths):
    folder = presets_folder(paths)
    folder.mkdir(parents=True)
    text = preset_toml(shipped_presets()[REPLICAS]).replace(
        "[options]", "[options]\ntext_only = true", 1
    )
    (folder / "blind.toml").write_text(text)
    blind = document("blind")
    seeing = document("blind", "--vision")
    assert "--language-model-only" in blind["plans"][0]["launch"][0]
    assert "--language-model-only" not in seeing["plans"][0]["launch"][0]
    assert seeing["plans"][0]["up"] == "skep up blind --vision"
    assert blind["preset"]["figures"]
    assert seeing["preset"]["figures"] == []


def test_a_preset_that_the_planner_calls_impossible_is_planned_with_a_caution():
    answer = document("qwen3.6-27b-3090-turboquant")
    assert answer["plans"][0]["caveats"][0].startswith(
        "its author ran it, though by what skep knows "
    )


def test_graphs_and_eager_can_be_asked_for_of_a_preset_and_of_a_model():
    recorded = document(EAGER, "--graphs")
    assert recorded["plans"][0]["graphs"] is True
    assert recorded["plans"][0]["up"] == f"skep up {EAGER} --graphs"
    assert recorded["preset"]["figures"] == []
    eager = document("qwen3.6-27b", "--gpu", "2x rtx-3090", "--engine", "vllm", "--no-graphs")
    assert {plan["graphs"] for plan in eager["plans"]} == {False}
    assert all(
        "--no-graphs" in plan["up"] and "--enforce-eager" in plan["launch"][0]
        for plan in eager["plans"]
    )


def test_the_configuration_that_died_is_planned_with_what_its_author_saw():
    plan = document("qwen2.5-coder-32b-2x3090-pcie")["plans"][0]
    assert plan["caveats"][0].startswith(
        "its author could not start it: SIGBUS while weights are loaded"
    )
    assert any(
        "died with SIGBUS while loading a dense model" in caveat for caveat in plan["caveats"]
    )
