"""`skep up --simulate` as a user runs it: the whole hive on a rig that is not here, benchmarked and reported."""

import json

import openai
import pytest
from talk import rows_of

from skep.cli.simulate import ServeOptions, simulated_serve
from skep.errors import UserError

RIG = ("qwen3-8b", "--gpu", "2x h200", "--quant", "awq", "--replicas", 2, "--slots", 2, "--simulate", "--port", 0)


def test_a_rig_that_is_not_here_is_served_measured_and_marked_everywhere(skep, tmp_path):
    nowhere = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    up = skep("up", *RIG, "-d", "--json", check=0, **nowhere)
    assert "no model runs" in up.stderr
    ready = json.loads(up.stdout)
    assert not (tmp_path / "cache").exists()  # no weights were fetched
    rows = rows_of(skep)
    assert [row["simulated"] for row in rows.values() if row["kind"] == "replica"] == [True, True]
    assert skep("ps", check=0).stdout.count("simulated") == 2

    with openai.OpenAI(base_url=ready["openai_base_url"], api_key="none") as client:
        raw = client.chat.completions.with_raw_response.create(
            model="qwen3-8b", messages=[{"role": "user", "content": "hello"}], max_tokens=5
        )
        assert raw.headers["x-skep-simulated"] == "1"
        assert raw.parse().model_extra["simulated"] is True
        told = client.models.list().data[0].model_extra["skep"]
    assert told["simulated"] is True
    assert told["engine"].startswith("simulated: qwen3-8b AWQ 4-bit")
    assert "2 x TP=1 on 2x h200" in told["engine"]

    load = ("--concurrency", "1,4", "--runs", 1, "--tasks", 4, "--max-tokens", 24, "--fixed-output")
    swept = skep("bench", "sweep", "--url", ready["url"], *load, "--warm-up", "quick", "--json", check=0)
    summary = json.loads(swept.stdout)
    assert summary["simulated"] is True
    assert [level["output_tokens"] for level in summary["levels"]] == [96, 96]
    (run,) = json.loads(skep("runs", "--json", check=0).stdout)
    assert run["simulated"] is True
    assert "(simulated)" in swept.stderr
    skep("report", "last", "-o", "report.html", check=0)
    page = (tmp_path / "report.html").read_text()
    assert "<h1>qwen3-8b (simulated)</h1>" in page
    assert "No model ran." in page
    assert "2 x TP=1 on 2x h200" in page
    skep("report", "last", "-o", "report.svg", check=0)
    assert "SIMULATED" in (tmp_path / "report.svg").read_text()

    told = json.loads(skep("reload", "--json", check=0, **nowhere).stdout)
    assert (told["added"], told["removed"], told["changed"]) == ([], [], [])


@pytest.mark.parametrize(
    ("wanted", "code", "said", "hint"),
    [
        (ServeOptions("qwen3-8b", gpu=("rtx-3099",)), 2, "no GPU is called `rtx-3099`", "`rtx-3090`"),
        (ServeOptions("qwen-27z", gpu=("h200",)), 2, "no model is called `qwen-27z`", "did you mean"),
        (ServeOptions(None, gpu=("h200",)), 2, "--simulate wants a model", "skep catalog models"),
        (ServeOptions("qwen3-8b", gpu=("h200",), engine="x"), 2, "--engine `x` is not known", "vllm"),
        (ServeOptions("qwen3-8b", gpu=("h200",), quant="x"), 2, "no quantization is called `x`", "awq"),
        (ServeOptions("qwen3-8b", gpu=("h200",), tp=2), 2, "--tp 2 needs 2 cards", "TP x PP x replicas"),
        (ServeOptions("qwen3-8b", gpu=("2x rtx-5090",), link="nvlink"), 2, "rtx-5090 has no NVLink", "--link pcie"),
        (ServeOptions("gemma-4-31b", gpu=("rtx-3060",), quant="bf16"), 3, "largest term is weights", "what would fit"),
    ],
    ids=["card", "model", "no model", "engine", "quant", "tp", "link", "memory"],
)
def test_what_cannot_be_simulated_is_said_in_one_line(wanted, code, said, hint):
    with pytest.raises(UserError) as caught:
        simulated_serve(wanted)
    assert caught.value.exit_code == code
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--gpu", "h200"), "--gpu is for a simulated rig"),
        (("--simulate", "--gpu", "h200", "--threads", 2), "--simulate and --threads contradict each other"),
        (("--simulate",), "no GPU was found on this machine"),
    ],
    ids=["no --simulate", "--threads", "no cards here"],
)
def test_options_that_do_not_go_together_are_refused(skep, tmp_path, options, said):
    """Without --gpu this machine's cards are meant; the PATH has no nvidia-smi to find any."""
    done = skep("up", "qwen3-8b", *options, check=2, PATH=str(tmp_path))
    error, hint = done.stderr.splitlines()
    assert (error, hint[:6]) == (f"error: {said}", "hint: ")


def test_a_smaller_context_than_a_usual_task_can_be_simulated():
    model, serve = simulated_serve(ServeOptions("qwen3-8b", gpu=("h200",), context=1024, slots=3))
    assert (model, serve["context_tokens"], serve["slots"], serve["replicas"]) == ("qwen3-8b", 1024, 3, 1)
