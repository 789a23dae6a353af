"""`skep plan` as a user runs it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skep.cli.main import app
from skep.errors import SkepError

TWO = ("--gpu", "2x rtx-3090")


def plan(skep, *args, check=0):
    return json.loads(skep("plan", *args, "--json", check=check).stdout)


def test_the_document_has_what_other_programs_read(skep):
    found = plan(skep, "qwen3.6-27b", *TWO, "--link", "pcie", "--agents", "4")
    best = found["plans"][0]
    assert set(best["topology"]) == {"tp", "pp", "ep", "replicas"}
    assert best["topology"]["tp"] * best["topology"]["pp"] * best["topology"]["replicas"] <= 2
    assert {"quant", "kv_dtype", "slots", "spec", "launch", "why", "engine", "context", "rig"} <= set(best)
    assert all(isinstance(line, str) for line in best["launch"])
    assert len(best["launch"]) == best["topology"]["replicas"]
    assert sum(term["bytes"] for term in best["memory"]) <= best["card_bytes"]
    assert {"term", "bytes"} <= set(best["memory"][0])
    assert [level["concurrency"] for level in best["predicted"]] == [1, 2, 4, 8]
    for level in best["predicted"]:
        assert 0 < level["low"] <= level["effective_tok_s"] <= level["high"]
        assert level["task_tok_s"] > 0
        assert level["ttft_ms"] > 0
    assert all({"topology", "reason"} <= set(dropped) for dropped in found["rejected"])
    speeds = [p["predicted"][2]["effective_tok_s"] for p in found["plans"]]
    assert speeds[0] == max(speeds)


def test_what_people_read_has_every_part(skep):
    done = skep("plan", "qwen3.6-27b", *TWO, "--explain", check=0)
    assert done.stdout.startswith("qwen3.6-27b on 2x rtx-3090 for 4 agents: ")
    for words in ("Layouts, best first", "LOW", "Memory of one rtx-3090", "KV pool", "Rules that apply", "vllm serve ",
                  "Runner-up: ", "Why", "Dropped", "dense weights", "What each further card adds", "With llamacpp: ",
                  "One step of a replica with 1 agent:", "One step of a replica with 4 agents:"):  # fmt: skip
        assert words in done.stdout, words
    assert done.stderr == ""


def test_rigs_stand_side_by_side_with_their_prices(skep):
    found = plan(skep, "qwen3.6-27b", "--gpu", "2x rtx-3090@800", "--gpu", "rtx-5090", "--price", "2500")
    by_rig = {p["rig"]: p for p in reversed(found["plans"])}
    assert set(by_rig) == {"2x rtx-3090", "rtx-5090"}
    assert (by_rig["2x rtx-3090"]["price"], by_rig["rtx-5090"]["price"]) == (1600, 2500)
    for one in by_rig.values():
        assert one["tok_s_per_price"] > 0
        assert one["tok_s_per_watt"] > 0
    assert "TOK/S PER 1000" in skep("plan", "qwen3.6-27b", "--gpu", "rtx-5090@2500", check=0).stdout


@pytest.mark.slow
def test_a_rig_that_is_too_small_stands_beside_one_that_is_not(skep):
    done = skep("plan", "llama-3.3-70b", "--gpu", "rtx-3060", "--gpu", "4x rtx-3090", check=0)
    assert "rtx-3060: does not fit" in done.stdout
    found = plan(skep, "llama-3.3-70b", "--gpu", "rtx-3060", "--gpu", "4x rtx-3090")
    assert {p["rig"] for p in found["plans"]} == {"4x rtx-3090"}
    assert "rtx-3060" in {dropped["rig"] for dropped in found["rejected"]}


@pytest.mark.slow
def test_pins_and_several_engines(skep):
    pins = ("--quant", "AWQ", "--kv", "fp8_e5m2", "--tp", "2", "--slots", "4", "--context", "16384", "--spec", "mtp:3",
            "--no-graphs", "--utilization", "0.9")  # fmt: skip
    for one in plan(skep, "qwen3.6-27b", *TWO, *pins)["plans"]:
        assert (one["quant"], one["kv_dtype"], one["topology"]["tp"]) == ("awq", "fp8_e5m2", 2)
        assert (one["slots"], one["context"], one["spec"], one["graphs"]) == (4, 16384, "mtp:3", False)
    found = plan(skep, "qwen3-8b", *TWO, "--engine", "vllm,llamacpp")
    assert {p["engine"] for p in found["plans"]} == {"vllm", "llamacpp"}
    assert {p["engine"] for p in plan(skep, "qwen3-8b", *TWO)["other_engines"]} == {"sglang", "llamacpp"}


def test_a_model_that_fits_nowhere_ends_with_3_the_largest_term_and_what_would_fit(skep):
    done = skep("plan", "qwen3.6-27b", "--gpu", "rtx-3090", "--quant", "bf16", "--json", check=3)
    assert json.loads(done.stdout)["plans"] == []
    message, hint = done.stderr.splitlines()
    assert "the largest term is weights (50.0 GiB a card)" in message
    assert hint.startswith("hint: what would fit: --quant ")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("qwen3.6-28b", *TWO), "did you mean `qwen3.6-27b`"),
        (("qwen3.6-27b", "--gpu", "2x rtx-3095"), "did you mean `rtx-3090`"),
        (("qwen3.6-27b", "--gpu", "rtx-3090", "--tp", "2"), "--tp 2 needs 2 cards"),
        (("qwen3.6-27b", "--gpu", "4x rtx-3090", "--replicas", "3", "--tp", "2"), "--tp 2 --replicas 3 needs 6 cards"),
        (("qwen3.6-27b", *TWO, "--engine", "llamacpp", "--quant", "awq"), "llamacpp reads GGUF, not AWQ"),
        (("qwen3.6-27b", "--gpu", "2x rtx-5090", "--link", "nvlink"), "rtx-5090 has no NVLink"),
        (("gemma-4-31b", "--gpu", "5x rtx-3090", "--tp", "5"), "5 does not divide the 32 attention heads"),
        (("qwen3.6-27b", *TWO, "--kv", "turboquant_k8v4"), "refused on the hybrid"),
        (("qwen2.5-coder-32b", *TWO, "--spec", "mtp:3"), "has no MTP layers"),
        (("qwen3.6-27b", *TWO, "--spec", "mtp"), "--spec `mtp` has no depth"),
        (("qwen3.6-27b", *TWO, "--spec", "psychic:3"), "--spec `psychic:3` is not understood"),
        (("qwen3.6-27b", *TWO, "--goal", "speed"), "--goal `speed` is not known"),
        (("qwen3.6-27b", *TWO, "--shape", "round"), "--shape `round` is not known"),
        (("qwen3.6-27b", *TWO, "--engine", "ollama"), "--engine `ollama` is not known"),
        (("qwen3.6-27b", *TWO, "--quant", "2bit"), "no quantization is called `2bit`"),
        (("qwen3.6-27b", *TWO, "--kv", "2bit"), "no KV cache type is called `2bit`"),
        (("qwen3.6-27b", *TWO, "--slo", "speed=1s"), "--slo `speed=1s`"),
        (("qwen3.6-27b", *TWO, "--utilization", "90"), "--utilization 90 is no share"),
        (("qwen3.6-27b", *TWO, "--context", "512"), "--context 512 is less than a task's 1536 tokens"),
        (("qwen3.6-27b", *TWO, "--price", "1", "--price", "2"), "2 --price for 1 --gpu"),
        (("qwen3.6-27b", "--gpu-spec", "name=x"), "lacks memory"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_bad_input_is_one_line_and_a_hint(args, words):
    done = CliRunner().invoke(app, ["plan", *args])
    assert isinstance(done.exception, SkepError)
    assert done.exception.exit_code == 2
    assert words in f"{done.exception.message} {done.exception.hint}"
    assert "\n" not in done.exception.message + done.exception.hint
    assert done.stdout == ""


CONFIG = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
          "intermediate_size": 14336, "vocab_size": 128256}  # fmt: skip


def test_a_configuration_serves_where_a_model_is_not_listed(skep, tmp_path):
    quantized = {**CONFIG, "quantization_config": {"quant_method": "awq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(quantized))
    found = plan(skep, "./config.json", *TWO)
    assert {p["quant"] for p in found["plans"]} == {"awq"}
    assert "the configuration says AWQ 4-bit" in found["notes"]
    (tmp_path / "config.json").write_text("{")
    done = skep("plan", "./config.json", *TWO, check=2)
    assert len(done.stderr.splitlines()) <= 2


def test_a_card_of_ones_own_and_this_machine(skep):
    found = plan(skep, "qwen3-8b", "--gpu-spec", "name=mine,memory=24GiB,bandwidth=900,fp16=70,cc=8.6")
    assert found["plans"][0]["rig"] == "mine"
    found = plan(skep, "qwen3-8b", "--gpu-spec", "name=mine,memory=24GiB,bandwidth=900", "--gpu", "2x mine")
    assert {p["rig"] for p in found["plans"]} == {"2x mine"}


CAPTURED = Path(__file__).parent.parent / "host" / "captured" / "3090x2-nvlink"


def test_without_a_rig_it_is_this_machine(skep, tmp_path, env):
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(
        f'#!/bin/sh\ncase "$1" in\n--query-gpu=*) cat "{CAPTURED}/query.csv" ;;\n'
        f'topo) cat "{CAPTURED}/topo.txt" ;;\n*) cat "{CAPTURED}/header.txt" ;;\nesac\n'
    )
    smi.chmod(0o755)
    done = skep("plan", "qwen3.6-27b", "--json", check=0, PATH=f"{smi.parent}:{env['PATH']}")
    found = json.loads(done.stdout)
    assert found["plans"][0]["rig"] == "this machine (2x rtx-3090)"
    assert found["rigs"][0]["pairs"][0]["kind"] == "nvlink"


def test_a_page_with_pictures_is_written_beside(skep, tmp_path):
    done = skep("plan", "qwen3.6-27b", *TWO, "--html", "plan.html", check=0)
    assert "wrote plan.html" in done.stderr
    page = (tmp_path / "plan.html").read_text()
    assert page.count("<svg ") >= 5
    for words in ("Predicted, not measured.", "What one card holds", "Where a step&#x27;s time goes", "vllm serve "):
        assert words in page, words
    assert "http://" not in page.replace("http://127.0.0.1", "").replace("http://www.w3.org", "")


@pytest.mark.slow
def test_a_promise_is_held_against_the_forecast(skep):
    tight = plan(skep, "qwen3.6-27b", *TWO, "--slo", "ttft=1ms")
    assert not any(p["meets_slo"] for p in tight["plans"])
    assert "NOT within --slo" in skep("plan", "qwen3.6-27b", *TWO, "--slo", "ttft=1ms", check=0).stdout
    assert plan(skep, "qwen3.6-27b", *TWO, "--slo", "ttft=1m")["plans"][0]["meets_slo"]
