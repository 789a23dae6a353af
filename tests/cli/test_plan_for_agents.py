"""What `skep plan` says of agents' tasks: decisions that home labs have made, and a start line
that can be typed.
"""

import re
import shlex
from functools import cache

import pytest
from in_process import call

from skep.catalog.models import checkpoint_of

pytestmark = pytest.mark.usefixtures("paths")
DENSE = "qwen3.6-27b --gpu 2xrtx-3090"


@cache
def planned(words):
    """Nothing but its words decides: no store holds a calibration, no card is here."""
    return call("plan", *words.split(), "--json", check=0).json


def best(words):
    return planned(words)["plans"][0]


@pytest.mark.parametrize(
    ("words", "engine", "tp", "replicas", "context"),
    [
        ("gpt-oss-20b --gpu rtx-4090 -c 1", "llamacpp", 1, 1, 100_000),
        ("gpt-oss-120b --gpu strix-halo -c 1", "llamacpp", 1, 1, 100_000),
        ("qwen3.6-35b-a3b --gpu rtx-3090 -c 1", "llamacpp", 1, 1, 95_000),
        ("qwen3.6-35b-a3b --gpu 2xrtx-3090 -c 4", "vllm", 2, 1, 95_000),
        ("llama-3.3-70b --gpu 4xrtx-3090 -c 8", "vllm", 2, 1, 17_408),
        (f"{DENSE} -c 4", "vllm", 2, 1, 65_536),
        (f"{DENSE} -c 4 --prompt-tokens 1024", "vllm", 1, 2, 17_408),
        (f"{DENSE}:nvlink -c 4", "vllm", 2, 1, 131_072),
        ("qwen3.6-27b --gpu strix-halo -c 1", "llamacpp", 1, 1, 100_000),
        ("qwen3.6-27b --gpu strix-halo -c 8", "llamacpp", 1, 1, 100_000),
    ],
)
def test_what_home_labs_found_comes_out(words, engine, tp, replicas, context):
    """They counted single requests."""
    answer = best(f"{words} --load task")
    assert (answer["engine"], answer["topology"]["tp"], answer["topology"]["replicas"]) == (
        engine,
        tp,
        replicas,
    )
    assert answer["keeps_promise"]
    assert answer["context"] >= context


@pytest.fixture
def page(paths):
    """What is printed of tasks on two cards without further wishes."""
    return call("plan", *DENSE.split(), "--load", "task", check=0).out


def test_a_plan_is_read_at_a_glance(page):
    lines = page.splitlines()
    assert len(lines) <= 29
    assert lines[0] == "qwen3.6-27b on 2x rtx-3090 for 4 agents: TP=2, INT4, mtp n=3 (vllm)"
    assert "tokens of context each" in lines[2]


def test_a_plan_has_two_warnings_at_most_besides_those_of_presets(page):
    warnings = [line for line in page.splitlines() if line.startswith("! ")]
    assert sum(not line.startswith("! preset ") for line in warnings) <= 2


def test_reasons_and_commands_of_engines_are_not_printed_unless_wanted(page):
    assert "Why" not in page.splitlines()
    assert "vllm serve" not in page


def test_a_plan_has_one_start_line_that_pins_the_model_and_its_checkpoint(page):
    (start,) = (line.strip() for line in page.splitlines() if line.startswith("  skep up "))
    pinned = shlex.split(start)
    assert pinned[:3] == ["skep", "up", "qwen3.6-27b"]
    assert pinned[pinned.index("--checkpoint") + 1] == "Lorbus/Qwen3.6-27B-int4-AutoRound"


def test_the_start_line_starts_what_the_plan_says(two_3090s):
    answer = call("plan", "qwen3.6-27b", "--engine", "vllm", "--json", check=0).json["plans"][0]
    json = call(*shlex.split(answer["up"])[1:], "--dry-run", "--json", check=0).json
    (serve,) = json["serve"]
    assert (serve["engine"], serve["slots"], serve["context"]) == (
        answer["engine"],
        answer["slots"],
        answer["context"],
    )
    assert (serve["replicas"], serve["weights"]["source"]) == (
        answer["topology"]["replicas"],
        answer["checkpoint"],
    )
    assert all("--language-model-only" in line for line in serve["commands"])


def test_a_layout_too_small_for_all_agents_says_how_many_wait():
    answer = best("llama-3.3-70b --gpu 2xrtx-3090 -c 8")
    assert not answer["keeps_promise"]
    assert any("of 8 agents at once, the others wait" in line for line in answer["caveats"])


def test_a_layout_too_small_that_is_much_faster_says_what_room_for_all_would_cost():
    crowd = best("qwen3.6-27b --gpu arc-pro-b70 -c 50 --prompt-tokens 1024 --output-tokens 512")
    assert (crowd["engine"], crowd["keeps_promise"]) == ("vllm", False)
    (line,) = (line for line in crowd["caveats"] if "the others wait" in line)
    assert re.search(
        r"; room for all 50 costs \d\d% of the speed: .*\(llamacpp\) with \d+ tok/s$", line
    )


def test_formats_that_somebody_has_published_stand_before_those_that_nobody_made():
    published = [plan["published"] for plan in planned("qwen3.6-27b --gpu rtx-5090")["plans"]]
    assert published[0]
    assert published == sorted(published, reverse=True)


def test_a_plan_names_a_checkpoint_of_its_model_exactly_where_one_is_published():
    for plan in planned("qwen3.6-27b --gpu rtx-5090")["plans"]:
        checkpoint = plan["checkpoint"]
        assert (checkpoint is not None) == plan["published"]
        assert checkpoint is None or checkpoint_of(checkpoint).model == "qwen3.6-27b"


@pytest.mark.parametrize(
    "words", ["gpt-oss-120b --gpu rtx-3090 -c 1", "qwen3.6-35b-a3b --gpu rtx-3060 -c 1"]
)
def test_experts_that_do_not_fit_stay_in_system_memory(words):
    answer = best(words)
    assert "--n-cpu-moe" in answer["launch"][0]
    at = answer["predicted"][0]
    assert at["high"] / at["low"] > 2
    assert any("stay in system memory" in line for line in answer["caveats"])


def test_names_with_an_x_are_understood_and_context_and_pictures_are_demands():
    assert best("qwen3-8b --gpu 7900xtx")["engine"] == "llamacpp"
    assert best("qwen3-8b --gpu 2x7900xtx")["rig"] == "2x rx-7900-xtx"
    assert best(f"{DENSE} --context 32768")["context"] == 32_768
    for too_large in ("qwen3.6-27b --gpu rtx-3060 --context 131072", "deepseek-v3 --gpu rtx-3090"):
        assert call("plan", *too_large.split()).code == 3
    text = best(f"{DENSE} -c 4")
    seeing = best(f"{DENSE} --vision")
    assert any(
        "image input is off, which saves 1.1 GiB a card" in line for line in text["caveats"]
    )
    assert "--vision" in seeing["up"]
    assert not any("pictures" in line for line in seeing["caveats"])


SHAPE = r"1024 tokens in, 1024 out, C=4 \(preset qwen3.6-27b-2x3090-replicas\)"
EVIDENCE = {
    "a preset": (
        f"{DENSE} -c 4 --replicas 2 --engine vllm --load task",
        (
            rf"^published for 2x rtx-3090: 225 tok/s at {SHAPE}; this plan expects \d+ there, "
            r"[-+]\d+ %$"
        ),
    ),
    "a published row where no preset is": (
        "gpt-oss-20b --gpu dgx-spark -c 8",
        (
            r"180 tok/s with TP=1 \(vllm\) at 1024 tokens in, 1024 out, C=10 \(github.*\); this "
            r"plan expects \d+ there"
        ),
    ),
    "in another layout or format": (
        "gemma-4-31b --gpu 2xrtx-3090 -c 1 --spec none",
        r"with TP=2, mtp n=4 \(vllm\)",
    ),
    "not what waited for a slot: the preset has 4, and the same figure at C=4 and C=8": (
        "qwen3.6-35b-a3b --gpu 2xrtx-3090 -c 8",
        "^(?!.*preset)",
    ),
    "why the plan says something else": (
        "gpt-oss-120b --gpu h100-sxm -c 64 --engine vllm",
        r"-\d\d % with its \d+ slots? for longer tasks$",
    ),
    "which of the two to trust": (
        "qwen3.6-27b --gpu arc-pro-b70 -c 1 --engine vllm --quant gptq --spec none",
        "trust the published figure, not the plan$",
    ),
    "of another weight format, without a comparison": (
        "gemma-4-31b --gpu 4xrtx-3090 -c 1 --quant bf16",
        r"81 tok/s in AWQ 4-bit at C=1 \(.*\); not compared: this plan has BF16$",
    ),
    "of a preset without lengths, as such": (
        "gpt-oss-20b --gpu rtx-4090 -c 5 --engine llamacpp --quant q4_k_m",
        r": 177 tok/s at C=5 \(preset gpt-oss-20b-4090\); not compared: it states no lengths$",
    ),
    "without lengths but nearer, beside the one that can be compared": (
        "qwen3-coder-30b-a3b --gpu 2xrtx-3090 -c 4 --link nvlink",
        r"this plan expects .*; also 399 tok/s .*C=4 .*; not compared: it states no lengths$",
    ),
}


@pytest.mark.parametrize(("words", "message"), EVIDENCE.values(), ids=EVIDENCE)
def test_what_others_measured_stands_beside_the_plan(words, message):
    (published,) = (note for note in planned(words)["notes"] if note.startswith("published for "))
    assert re.search(message, published)


@pytest.mark.usefixtures("two_3090s")
def test_a_published_row_is_not_called_a_measurement_of_this_machine():
    """Two cards of that kind are here, and nothing was ever measured on them."""
    out = call("plan", "qwen3.6-27b", check=0).out
    assert "! published for 2x rtx-3090: 225 tok/s" in out
    assert "measured on this machine" not in out


def test_rigs_of_the_same_cards_have_their_own_published_lines():
    linked = "2x rtx-3090: nvlink"
    plain = "2x rtx-3090: pcie"
    plans = call("plan", "qwen3.6-27b", "--gpu", linked, "--gpu", plain, "--json", check=0).json[
        "plans"
    ]
    for plan in plans:
        assert sum(line.startswith("published for 2x rtx-3090: ") for line in plan["caveats"]) == 1


def test_rigs_side_by_side_end_with_what_to_buy():
    """Those that meet the requirement stand first, the cheap ones before the dear ones."""
    rigs = ("--gpu", "rtx-5090@2500", "--gpu", "rtx-3060@250", "--gpu", "2x rtx-3090@700")
    out = call("plan", "qwen3.6-27b", *rigs, "--load", "task", check=0).out
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[3:6]] == ["2x", "rtx-5090", "rtx-3060"]
    assert lines[3].startswith("2x rtx-3090 @700 each")
    assert "does not fit" in lines[5]
    (buy,) = (line for line in lines if line.startswith("Buy "))
    assert buy.startswith("Buy 2x rtx-3090: at 1,400 the cheapest that meets the requirement")
    assert "rtx-5090 gives the most for its money" in buy
    assert "Start it on 2x rtx-3090\n" in out


@pytest.mark.parametrize("prices", [("@2500", "@700"), ("", "")], ids=["with prices", "without"])
def test_the_rig_to_buy_is_the_one_to_start_on_also_in_the_document_and_on_the_page(
    tmp_path, prices
):
    """The dearer rig was the first of --json and --html, because it is the faster one."""
    dear, cheap = prices
    rigs = ("--gpu", f"2x rtx-5090{dear}", "--gpu", f"2x rtx-3090{cheap}", "-c", "4")
    page = tmp_path / "plan.html"
    out = call("plan", "qwen3.6-27b", *rigs, "--html", str(page), check=0).out
    named = re.search(r"^(?:Buy |Fastest .*: )(2x rtx-\d+)", out, re.MULTILINE)[1]
    assert f"Start it on {named}\n" in out
    assert named == ("2x rtx-3090" if cheap else "2x rtx-5090")
    plans = call("plan", "qwen3.6-27b", *rigs, "--json", check=0).json["plans"]
    assert plans[0]["rig"] == named
    assert f"qwen3.6-27b on {named}" in page.read_text()


def test_the_most_for_the_money_is_not_said_beside_a_higher_figure():
    """Two old cards give more tok/s for their price, but not within --slo."""
    rigs = (
        "--gpu",
        "2x rtx-3090@100",
        "--gpu",
        "rtx-5090@2500",
        "--slo",
        "ttft=15s",
        "--load",
        "task",
    )
    lines = call("plan", "qwen3.6-27b", *rigs, check=0).out.splitlines()
    assert [line.split()[0] for line in lines[3:5]] == ["rtx-5090", "2x"]
    (buy,) = (line for line in lines if line.startswith("Buy rtx-5090"))
    assert "it also gives the most for its money of those that meet it" in buy


def test_the_two_speeds_of_a_plan_say_what_each_is_of():
    """Four times 34 is more than 64: prompts are read in between."""
    lines = call(
        "plan", *DENSE.split()[:1], "--gpu", "2x rtx-3090", "--load", "task", check=0
    ).out.splitlines()
    assert lines[1].endswith("tok/s each while an answer streams")
    assert "reading prompts included" in lines[1]
    (head,) = (line for line in lines if line.startswith("Layouts, best first"))
    assert "STREAM: one answer while it streams" in head


def test_a_card_that_adds_nothing_is_named_beside_the_cards_and_in_the_document():
    words = "gemma-4-31b --gpu 5xrtx-3090 -c 1"
    out = call("plan", *words.split(), check=0).out
    assert (
        out.count("card 5 adds nothing for vllm: TP=5 does not divide the 32 heads of gemma-4-31b")
        == 1
    )
    assert any(line.startswith("card 5 adds nothing for vllm") for line in best(words)["caveats"])


def test_a_format_that_is_published_under_another_name_has_its_checkpoint():
    """AWQ of Gemma 4 was said to be unknown, while a preset names the checkpoint."""
    assert best("gemma-4-31b --gpu 4xrtx-3090 -c 1 --quant awq")["checkpoint"] is not None


MOE = (
    "qwen3.6-35b-a3b --gpu 2xrtx-3090 --tp 2 --ep 2 --spec none --engine vllm --slots 4 --quant "
    "awq"
)


@pytest.mark.parametrize(
    ("agents", "answer", "published"),
    [(1, 256, 90.3), (1, 4096, 98.9), (2, 1024, 161.5), (4, 1024, 282.7), (8, 1024, 282.2)],
)
def test_a_layout_that_a_preset_measured_is_planned_as_it_was_measured(agents, answer, published):
    """The five rows of a mixture on two 3090s were planned 67 to 78 % too fast."""
    plan_document = best(f"{MOE} -c {agents} --prompt-tokens 1024 --output-tokens {answer}")
    (level,) = (
        prediction
        for prediction in plan_document["predicted"]
        if prediction["concurrency"] == agents
    )
    assert level["effective_tok_s"] == pytest.approx(published, rel=0.25)
    assert plan_document["rests_on"] == "corrected"
    assert any(
        "figures corrected by rows of this layout (preset " in line
        for line in plan_document["caveats"]
    )


def test_the_notes_of_the_preset_that_measured_a_layout_stand_beside_it():
    out = call("plan", *MOE.split(), check=0).out
    assert (
        "! preset qwen3.6-35b-a3b-2x3090-ep: More than 4 sequences kill the engine under load"
        in out
    )
    assert "rests on published rows of this layout" in out


def test_drafts_that_a_preset_could_not_start_are_left_out_or_marked():
    failed = "says preset qwen3.6-35b-a3b-2x3090-ep: MTP runs out of memory at start"
    plain = call("plan", "qwen3.6-35b-a3b", "--gpu", "2xrtx-3090", "-c", "4", check=0).out
    assert "mtp" not in plain.splitlines()[0]
    assert f"! without drafts: they did not start in vllm on 2x rtx-3090, {failed}" in plain
    out = call("plan", *MOE.replace("none", "mtp:1").split(), check=0).out
    assert "mtp n=1 (!)" in out
    assert out.count(f"mtp n=1 did not start in vllm on 2x rtx-3090, {failed}") == 1
    two_cards = call("plan", "qwen3.6-35b-a3b", "--gpu", "2xrtx-5090", "-c", "4", check=0).out
    assert "did not start" not in two_cards


QUAD = (
    "gemma-4-31b",
    "--gpu",
    "4x rtx-3090",
    "-c",
    "1",
    "--prompt-tokens",
    "1024",
    "--output-tokens",
    "512",
)


@cache
def formats_on_four_3090s():
    return call("plan", *QUAD, "--formats", "--json", check=0).json


def rows_of_formats(part):
    """The rows of `weights` or of `kv` by their format."""
    return {row["format"]: row for row in formats_on_four_3090s()[part]}


def test_four_bits_are_the_first_weight_format_on_four_3090s():
    """As in a write-up on four RTX 3090s: 4 bits ship, FP8 has no hardware, NVFP4 KV does not
    start.
    """
    weights = rows_of_formats("weights")
    assert [name for name, row in weights.items() if row["verdict"] == "first"] == ["int4"]


@pytest.mark.parametrize("name", ["int4", "awq"])
def test_four_bits_have_an_engine_a_layout_and_a_kernel(name):
    row = rows_of_formats("weights")[name]
    assert (row["engine"], row["layout"], row["kernel"]) == ("vllm", "TP=4", "Marlin")


def test_sixteen_bits_are_large_and_slow():
    weights = rows_of_formats("weights")
    assert weights["bf16"]["tok_s"] < 0.6 * weights["awq"]["tok_s"]
    assert 57 < weights["bf16"]["size_gib"] < 60


def test_fp8_weights_are_unpacked_where_the_cards_have_no_units_for_them():
    row = rows_of_formats("weights")["fp8"]
    assert row["kernel"] == "Marlin, unpacked to 16 bits"
    assert "has no FP8 units" in row["why"]


def test_a_weight_format_that_nobody_published_says_so():
    assert rows_of_formats("weights")["q6_k"]["verdict"] == "unpublished"


def test_a_cache_in_sixteen_bits_is_first_on_cards_that_refuse_smaller_ones():
    kv = rows_of_formats("kv")
    assert kv["bf16"]["verdict"] == "first"
    assert "fails on Ampere" in kv["fp8_e4m3"]["why"]
    assert (kv["nvfp4"]["verdict"], kv["nvfp4"]["tok_s"]) == ("refused", None)


def test_the_tables_of_formats_are_printed_with_their_verdicts():
    out = call("plan", *QUAD, "--formats", check=0).out
    assert "nothing was measured" in out
    assert re.search(r"^INT4 +\d+\.\d +vllm +Marlin +TP=4 +\d+ .* first ", out, re.MULTILINE)
    assert re.search(r"^NVFP4 .* refused +NVFP4 KV needs NVIDIA's FP4 units", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("model", "rig"),
    [("qwen3.6-27b", "2x rtx-3090"), ("qwen3.6-35b-a3b", "rtx-3090"), ("qwen3-8b", "2x rtx-4090")],
)
def test_the_first_format_is_the_one_that_the_plan_of_the_model_chooses(model, rig):
    plan = call("plan", model, "--gpu", rig, "--json", check=0).json["plans"][0]
    json = call("plan", model, "--gpu", rig, "--formats", "--json", check=0).json
    (weights,) = (row for row in json["weights"] if row["verdict"] == "first")
    (kv,) = (row for row in json["kv"] if row["verdict"] == "first")
    at = next(level for level in plan["predicted"] if level["concurrency"] == 4)
    assert (weights["format"], weights["engine"], kv["format"]) == (
        plan["quant"],
        plan["engine"],
        plan["kv_dtype"],
    )
    assert weights["tok_s"] == pytest.approx(at["effective_tok_s"], rel=1e-3)
    assert kv["tok_s"] == weights["tok_s"]


def test_a_format_that_is_as_good_as_the_first_has_no_negative_zero_beside_it():
    json = call("plan", "qwen3.6-27b", "--gpu", "2x rtx-3090", "--formats", "--json", check=0).json
    reasons = [row["why"] for row in (*json["weights"], *json["kv"])]
    assert any("+0%" in why for why in reasons)
    assert not any("-0%" in why for why in reasons)


def test_formats_that_are_too_large_say_what_is_short_and_a_pinned_one_stands_alone():
    json = call(
        "plan", "qwen3.6-27b", "--gpu", "rtx-3090", "-c", "1", "--formats", "--json", check=0
    ).json
    (half,) = (row for row in json["weights"] if row["format"] == "bf16")
    assert half["verdict"] == "too large"
    assert "GiB a card, rtx-3090 gives" in half["why"]
    alone = call(
        "plan", "qwen3-8b", "--gpu", "rtx-3090", "--quant", "fp8", "--formats", "--json", check=0
    ).json
    assert [row["format"] for row in alone["weights"]] == ["fp8"]
    assert len(alone["kv"]) > 3


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("--gpu", "rtx-5090"), 2, "--formats compares the formats of one rig"),
        (("--html", "plan.html"), 2, "--formats prints its tables only"),
    ],
)
def test_formats_are_of_one_rig_and_have_no_page(words, code, expected):
    done = call("plan", "qwen3-8b", "--gpu", "rtx-3090", "--formats", *words)
    assert (done.code, expected in done.error.message) == (code, True)


def test_where_no_format_fits_the_exit_code_is_3():
    assert call("plan", "deepseek-v3", "--gpu", "rtx-3090", "--formats").code == 3
