"""What somebody with a home lab expects of `skep plan`: one sentence a test."""

import json
import subprocess
import sys

import pytest

CONFIG = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
          "intermediate_size": 14336, "vocab_size": 128256}  # fmt: skip
ONE = ("--gpu", "rtx-3090")
TWO = ("--gpu", "2x rtx-3090")


@pytest.fixture
def ask(skep):
    """`skep plan ARGS...` in an empty folder."""
    return lambda *args: skep("plan", *args)


@pytest.fixture
def plan(ask):
    return lambda *args: json.loads(ask(*args, "--json").stdout)


@pytest.mark.parametrize(
    "args",
    [
        *(("qwen3-8b", *ONE, f"--price={price}") for price in ("nan", "inf", "-800", "0")),
        ("Qwen/Qwen3-8B-AWQ", *ONE, "--quant", "fp8"),
        ("qwen3-8b", *ONE, "--link", "carrier-pigeon"),
        ("qwen3-8b", *ONE, "--context", "100000"),
        ("qwen3-8b", "--gpu", "m3 ultra", "--engine", "vllm"),
        ("qwen3.6-27b", *TWO, "--pp", "2", "--spec", "mtp:3"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_is_refused_as_bad_input(ask, args):
    assert ask(*args).returncode == 2


def test_the_folder_of_a_configuration_is_found_without_a_dot_in_front(ask, tmp_path):
    (tmp_path / "models" / "mine").mkdir(parents=True)
    (tmp_path / "models" / "mine" / "config.json").write_text(json.dumps(CONFIG))
    assert ask("models/mine", *ONE).returncode == 0


def test_a_broken_gguf_is_bad_input(ask, tmp_path):
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    assert ask("broken.gguf", *ONE).returncode == 2


def test_a_format_that_the_checkpoint_is_not_in_contradicts_it(ask, tmp_path):
    quantized = {**CONFIG, "quantization_config": {"quant_method": "awq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(quantized))
    assert ask("./config.json", *ONE, "--quant", "fp8").returncode == 2


def test_a_quantization_that_is_not_known_is_said(ask, tmp_path):
    quantized = {**CONFIG, "quantization_config": {"quant_method": "brand-new"}}
    (tmp_path / "config.json").write_text(json.dumps(quantized))
    done = ask("./config.json", *ONE)
    assert "brand-new" in done.stdout + done.stderr


def test_a_model_that_writes_nothing_is_refused(ask, tmp_path):
    bert = {**CONFIG, "model_type": "bert", "architectures": ["BertForMaskedLM"]}
    (tmp_path / "config.json").write_text(json.dumps(bert))
    assert ask("./config.json", *ONE).returncode == 2


def test_a_configuration_right_here_is_not_served_as_config_json(plan, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert "--served-model-name config.json" not in plan("./config.json", *ONE)["plans"][0]["launch"][0]


def test_a_broken_configuration_is_named_by_its_file_and_in_plain_words(ask, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("null")
    said = ask("./mine", *ONE).stderr
    assert "config.json` " in said.splitlines()[0]
    assert "NoneType" not in said


def test_a_price_is_said_once(ask):
    done = ask("qwen3-8b", "--gpu", "rtx-3090@700", "--price", "800")
    assert done.returncode == 2
    assert "--price 800" in done.stderr


def test_another_format_of_an_unquantized_folder_is_not_started_from_that_folder(plan, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    found = plan("./config.json", *ONE, "--quant", "awq")["plans"][0]
    assert found["quant"] == "awq"
    assert "path/to/" in found["launch"][0]


def test_cards_with_commas_between_them_are_a_rig(plan):
    assert plan("qwen3-8b", "--gpu", "rtx 3090, rtx 3090")["rigs"][0]["rig"] == "2x rtx-3090"


@pytest.mark.parametrize(("name", "other"), [("h100", "h100-pcie"), ("rtx 6000", "rtx-pro-6000")])
def test_what_a_short_name_was_taken_for_is_said(plan, name, other):
    assert any(other in note for note in plan("qwen3-8b", "--gpu", name)["notes"])


def test_nvfp4_is_not_offered_on_amd(plan):
    assert "nvfp4" not in {p["quant"] for p in plan("qwen3-8b", "--gpu", "mi355x")["plans"]}


def test_a_spark_is_started_with_what_is_free_on_it(plan):
    assert plan("qwen3-8b", "--gpu", "dgx-spark")["plans"][0]["utilization"] <= 0.85


def test_several_machines_get_a_command_each(plan):
    found = plan("qwen3-235b-a22b", "--gpu", "2x dgx-spark")
    launch = found["plans"][0]["launch"]
    assert [line.rpartition("# on ")[2] for line in launch] == ["machine-1", "machine-2"]
    assert "CUDA_VISIBLE_DEVICES=0,1" not in launch[0]
    assert any("2 machines" in note for note in found["notes"])


def test_a_task_beyond_the_models_own_context_is_refused(ask):
    done = ask("qwen3-8b", *ONE, "--input-tokens", "30000", "--output-tokens", "20000")
    assert done.returncode == 2
    assert "40960" in done.stderr.replace(",", "")


def test_a_card_that_vllm_does_not_run_on_gets_llama_cpp(plan):
    assert {p["engine"] for p in plan("llama-3.1-8b", "--gpu", "p40")["plans"]} == {"llamacpp"}


def test_the_command_carries_what_the_rules_ask_for(plan):
    best = plan("llama-3.1-8b", "--gpu", "v100", "--quant", "bf16")["plans"][0]
    assert "--dtype half" in best["launch"][0]


def test_a_name_that_ends_in_gguf_means_llama_cpp(plan):
    assert plan("unsloth/Qwen3-32B-GGUF", *TWO)["plans"][0]["engine"] == "llamacpp"


def test_how_far_the_runner_up_is_behind_follows_from_the_figures_beside_it(plan):
    found = plan("qwen3.6-27b", *TWO)
    best, runner = found["plans"][0], found["runner_up"][0]
    same = (p for p in found["plans"] if (p["topology"], p["quant"]) == (runner["topology"], runner["quant"]))
    speeds = [p["predicted"][2]["effective_tok_s"] for p in (best, next(same))]
    assert runner["behind"] == pytest.approx(1 - speeds[1] / speeds[0], abs=0.005)


@pytest.mark.parametrize("rig", ["2x rtx-3090", "5x rtx-3090", "2x rtx-5090", "4x h100-sxm"])
@pytest.mark.parametrize("model", ["gemma-4-31b", "qwen3.6-35b-a3b", "qwen3-8b"])
def test_a_faster_layout_is_not_called_behind_and_says_why_it_is_second(plan, model, rig):
    found = plan(model, "--gpu", rig)
    best, runner = found["plans"][0], found["runner_up"][0]
    second = next(p for p in found["plans"] if (p["topology"], p["quant"]) == (runner["topology"], runner["quant"]))
    faster = second["predicted"][2]["effective_tok_s"] > best["predicted"][2]["effective_tok_s"]
    assert (runner["behind"] < 0) == faster
    assert runner["why"] or not faster


def test_what_a_further_card_adds_agrees_with_the_plans_of_fewer(plan):
    found = plan("qwen3.6-27b", "--gpu", "4x rtx-3090")
    fewer = {one["cards"]: one["effective_tok_s"] for one in found["further_cards"]}
    for cards, rig in ((1, ONE), (2, TWO)):
        alone = plan("qwen3.6-27b", *rig)["plans"][0]["predicted"][2]
        assert fewer[cards] == pytest.approx(alone["effective_tok_s"], rel=0.02)


def test_a_note_does_not_contradict_the_plans(plan):
    found = plan("qwen3.6-35b-a3b", *TWO, "--quant", "awq", "--spec", "mtp:3")
    assert {p["spec"] for p in found["plans"]} == {"mtp:3"}
    assert not any(note.startswith("no speculation offered") for note in found["notes"])


def test_a_replica_on_a_faster_card_is_faster(plan):
    pins = ("--replicas", "2", "--tp", "1", "--quant", "awq", "--agents", "4")
    found = plan("qwen3-8b", "--gpu", "rtx-5090 + rtx-3090", *TWO, *pins)
    speed = {p["rig"]: p["predicted"][2]["effective_tok_s"] for p in found["plans"]}
    assert speed["rtx-5090 + rtx-3090"] > 1.2 * speed["2x rtx-3090"]


def test_gpt_oss_with_llama_cpp_on_a_spark_reaches_what_is_published(plan):
    pins = ("--engine", "llamacpp", "--agents", "1", "--input-tokens", "64", "--output-tokens", "128")
    assert plan("gpt-oss-20b", "--gpu", "dgx-spark", *pins)["plans"][0]["predicted"][0]["high"] >= 79


def test_gpt_oss_20b_takes_no_more_memory_than_its_file(plan):
    memory = plan("gpt-oss-20b", *ONE, "--engine", "llamacpp")["plans"][0]["memory"]
    assert {term["term"]: term["bytes"] for term in memory}["weights"] <= 11.28 * 2**30


def test_a_card_that_exists_with_two_memories_is_asked_about_or_noted(ask):
    done = ask("qwen3-8b", "--gpu", "rtx-4060-ti")
    assert "rtx-4060-ti-8gb" in done.stdout + done.stderr


def test_too_many_cards_are_called_too_many(ask):
    assert "no GPU is called" not in ask("qwen3-8b", "--gpu", "100x rtx-3090").stderr


def test_rigs_that_differ_in_their_links_can_be_told_apart(plan):
    found = plan("qwen3-8b", *TWO, "--gpu", "2x rtx-3090: nvlink")
    assert len({p["rig"] for p in found["plans"]}) == 2


def test_the_hint_names_fewer_bits_where_they_fit(ask):
    done = ask("qwen3-235b-a22b", "--gpu", "strix-halo", "--engine", "llamacpp")
    assert "q3_k_m" in done.stderr.lower()


def test_a_page_that_cannot_be_written_is_bad_input(ask, tmp_path):
    assert ask("qwen3-8b", *ONE, "--html", str(tmp_path)).returncode == 2


def test_a_hint_names_the_flag(ask):
    assert "--ep 1" in ask("qwen3-8b", *ONE, "--ep", "4").stderr


def test_a_terminal_without_unicode_gets_a_plan(env):
    command = [sys.executable, "-m", "skep", "plan", "qwen3-8b", *ONE]
    done = subprocess.run(command, env={**env, "PYTHONIOENCODING": "ascii"}, capture_output=True, timeout=60)
    assert done.returncode == 0


def test_one_slot_is_one_slot(ask):
    assert "1 slot," in ask("qwen3-8b", "--gpu", "rtx-3050", "--quant", "bf16").stderr
