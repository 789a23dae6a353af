"""`skep plan` as somebody with a home lab runs it."""

import html
import json
import re
import subprocess
import sys

import pytest
from in_process import call, refused

ONE = ("--gpu", "rtx-3090")
TWO = ("--gpu", "2x rtx-3090")
CONFIG = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip
AWQ = {"quantization_config": {"quant_method": "awq", "bits": 4}}
SHORT = {"--prompt-tokens": "1024", "--output-tokens": "512", "--engine": "vllm"}
pytestmark = pytest.mark.usefixtures("paths")


def short(args):
    """Short tasks and vLLM alone, unless something else is said."""
    named = {"--input-tokens": "--prompt-tokens"}
    given = {named.get(word, word) for word in args}
    is_own_model = args[0].endswith(("gguf", ".json")) or "m3 ultra" in args
    return [
        *args,
        *(
            w
            for pair in SHORT.items()
            if pair[0] not in given
            for w in pair
            if not (is_own_model and "--engine" in pair)
        ),
    ]


def shown(*args):
    return call("plan", *short(args), "--more", "--commands", check=0)


def refusal(*args, **settings):
    return refused("plan", *short(args), **settings)


def plan(*args):
    return call("plan", *short(args), "--json", check=0).json


def best(*args):
    return plan(*args)["plans"][0]


def write_config(folder, **keys):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **keys}))


@pytest.fixture
def plans(paths):
    return plan("qwen3.6-27b", *TWO, "--link", "pcie", "--agents", "4")["plans"]


def test_the_first_plan_fits_the_cards_and_their_memory(plans):
    first = plans[0]
    assert first["topology"]["tp"] * first["topology"]["pp"] * first["topology"]["replicas"] <= 2
    assert sum(term["bytes"] for term in first["memory"]) <= first["card_bytes"]


def test_a_plan_has_a_command_for_each_replica(plans):
    assert len(plans[0]["launch"]) == plans[0]["topology"]["replicas"]


def test_a_plan_predicts_levels_up_to_twice_the_agents(plans):
    assert [level["concurrency"] for level in plans[0]["predicted"]] == [1, 2, 4, 8]


def test_every_level_of_a_plan_has_a_speed_within_its_range(plans):
    for level in plans[0]["predicted"]:
        assert 0 < level["low"] <= level["effective_tok_s"] <= level["high"]
        assert level["task_tok_s"] > 0
        assert level["ttft_ms"] > 0


def test_the_first_plan_is_the_fastest(plans):
    speeds = [layout["predicted"][2]["effective_tok_s"] for layout in plans]
    assert speeds[0] == max(speeds)


def test_what_people_read_has_every_part():
    done = shown("qwen3.6-27b", *TWO)
    assert done.out.startswith("qwen3.6-27b on 2x rtx-3090 for 4 agents: ")
    for words in (
        "Layouts, best first",
        "LOW",
        "Memory of one rtx-3090",
        "KV pool",
        "Rules that apply",
        "vllm serve ",
        "Why",
        "Rejected",
        "dense weights",
        "skep up qwen",
    ):
        assert words in done.out, words
    assert done.err == ""


@pytest.fixture
def printed_page(paths, tmp_path):
    """What is printed of a plan that is written as a page, too, and that page."""
    done = shown("qwen3.6-27b", *TWO, "--html", "plan.html")
    return done, (tmp_path / "plan.html").read_text()


def test_a_plan_as_a_page_is_announced_and_has_pictures(printed_page):
    done, page = printed_page
    assert "wrote plan.html" in done.err
    assert page.count("<svg ") >= 4


def test_a_plan_as_a_page_says_the_same_as_its_first_line(printed_page):
    done, page = printed_page
    name = done.out.splitlines()[0].partition(": ")[2]
    assert "mtp n=3 (vllm)" in name
    assert f"{name} gives 4 agents" in page


def test_a_plan_as_a_page_has_every_part_and_says_that_nothing_was_measured(printed_page):
    _, page = printed_page
    for words in ("Predicted, not measured.", "Memory of one GPU", "vllm serve "):
        assert words in page, words


def test_a_plan_as_a_page_fetches_nothing(printed_page):
    _, page = printed_page
    assert "http://" not in page.replace("http://127.0.0.1", "").replace("http://www.w3.org", "")


def test_the_page_says_of_each_rig_why_its_first_layout_is_not_its_fastest(tmp_path):
    rigs = ("--gpu", "rtx-5090", "--gpu", "2x rtx-3090")
    call("plan", "gemma-4-31b", *rigs, "--html", "plan.html", check=0)
    document = call("plan", "gemma-4-31b", *rigs, "--json", check=0).json
    page = (tmp_path / "plan.html").read_text()
    reasons = {rig["rig"]: rig["first_because"] for rig in document["rigs"]}
    assert "rtx-5090" in {rig for rig, reason in reasons.items() if reason}
    for rig, reason in reasons.items():
        assert (reason is None) == (f"<p>{rig}: first because: " not in page)
        assert reason is None or reason in html.unescape(page)


def test_rigs_stand_side_by_side_with_their_prices_and_names_to_be_told_apart_by():
    answer = plan("qwen3.6-27b", "--gpu", "2x rtx-3090@800", "--gpu", "rtx-5090@2500")
    by_rig = {p["rig"]: p for p in reversed(answer["plans"])}
    assert {rig: rig_plan["price"] for rig, rig_plan in by_rig.items()} == {
        "2x rtx-3090": 1600,
        "rtx-5090": 2500,
    }
    for rig_plan in by_rig.values():
        assert rig_plan["tok_s_per_price"] > 0
    assert "TOK/S PER 1000" in shown("qwen3.6-27b", "--gpu", "rtx-5090@2500").out
    answer = plan("qwen3-8b", "--gpu", "rtx 3090, rtx 3090", "--gpu", "2x rtx-3090: nvlink")
    assert answer["rigs"][0]["rig"] == "rtx 3090, rtx 3090"
    assert len({p["rig"] for p in answer["plans"]}) == 2


@pytest.mark.slow
def test_a_rig_that_is_too_small_stands_beside_one_that_is_not():
    words = ("llama-3.3-70b", "--gpu", "rtx-3060", "--gpu", "4x rtx-3090")
    assert re.search(r"rtx-3060 +does not fit", shown(*words).out)
    answer = plan(*words)
    assert {p["rig"] for p in answer["plans"]} == {"4x rtx-3090"}
    assert "rtx-3060" in {dropped["rig"] for dropped in answer["rejected"]}


@pytest.mark.slow
def test_pins_and_several_engines():
    pins = (
        "--quant", "AWQ", "--kv", "fp8_e5m2", "--tp", "2", "--slots", "4", "--context", "16384",
        "--spec", "mtp:3", "--utilization", "0.9",
    )  # fmt: skip
    for layout in plan("qwen3.6-27b", *TWO, *pins)["plans"]:
        assert (layout["quant"], layout["kv_dtype"], layout["topology"]["tp"]) == (
            "awq",
            "fp8_e5m2",
            2,
        )
        assert (layout["slots"], layout["context"], layout["spec"]) == (4, 16384, "mtp:3")
    answer = plan("qwen3-8b", *TWO, "--engine", "vllm,llamacpp")
    assert {p["engine"] for p in answer["plans"]} == {"vllm", "llamacpp"}


def test_a_model_that_fits_nowhere_ends_with_3_and_what_would_fit():
    done = call("plan", "qwen3.6-27b", *ONE, "--quant", "bf16", "--json", check=3)
    assert done.json["plans"] == []
    assert "the largest term is weights (50.0 GiB a card)" in done.error.message
    assert done.error.hint.startswith("what would fit: --quant ")
    assert (
        "q3_k_m"
        in refusal(
            "qwen3-235b-a22b", "--gpu", "strix-halo", "--engine", "llamacpp", code=3
        ).lower()
    )
    assert "1 slot," in refusal("qwen3-8b", "--gpu", "rtx-3050", "--quant", "bf16", code=3)
    assert "no GPU is called" not in refusal("qwen3-8b", "--gpu", "100x rtx-3090")  # but too many


REFUSED = [
    (("qwen3.6-28b", *TWO), "did you mean `qwen3.6-27b`"),
    (("qwen3.6-27b", "--gpu", "2x rtx-3095"), "did you mean `rtx-3090`"),
    (("qwen3.6-27b", "--gpu", "rtx-3090", "--tp", "2"), "--tp 2 needs 2 cards"),
    (
        ("qwen3.6-27b", "--gpu", "4x rtx-3090", "--replicas", "3", "--tp", "2"),
        "--tp 2 --replicas 3 needs 6 cards",
    ),
    (
        ("qwen3.6-27b", *TWO, "--engine", "llamacpp", "--quant", "awq"),
        "llamacpp reads GGUF, not AWQ",
    ),
    (("qwen3.6-27b", "--gpu", "2x rtx-5090", "--link", "nvlink"), "rtx-5090 has no NVLink"),
    (
        ("gemma-4-31b", "--gpu", "5x rtx-3090", "--tp", "5"),
        "5 does not divide the 32 attention heads",
    ),
    (("qwen3.6-27b", *TWO, "--kv", "turboquant_k8v4"), "refused on the hybrid"),
    (("qwen2.5-coder-32b", *TWO, "--spec", "mtp:3"), "has no MTP layers"),
    (("qwen3.6-27b", *TWO, "--spec", "mtp"), "`--spec` = `mtp` is not understood"),
    (("qwen3.6-27b", *TWO, "--spec", "psychic:3"), "`--spec` = `psychic:3` is not understood"),
    (("qwen3.6-27b", *TWO, "--goal", "speed"), "--goal `speed` is not known"),
    (("qwen3.6-27b", *TWO, "--engine", "ollama"), "--engine `ollama` is not known"),
    (("qwen3.6-27b", *TWO, "--quant", "2bit"), "no quantization is called `2bit`"),
    (("qwen3.6-27b", *TWO, "--kv", "2bit"), "no KV cache type is called `2bit`"),
    (("qwen3.6-27b", *TWO, "--slo", "speed=1s"), "--slo `speed=1s`"),
    (("qwen3.6-27b", *TWO, "--utilization", "90"), "--memory-share 90 is not a share"),
    (("qwen3.6-27b", *TWO, "--context", "512"), "--context 512 is less than a task's 1536 tokens"),
    *(
        (("qwen3-8b", "--gpu", f"rtx-3090@{price}"), "is not a number")
        for price in ("nan", "inf", "-800", "0")
    ),
    (("Qwen/Qwen3-8B-AWQ", *ONE, "--quant", "fp8"), "--quant"),
    (("qwen3-8b", *ONE, "--link", "carrier-pigeon"), "carrier-pigeon"),
    (("qwen3-8b", *ONE, "--context", "100000"), "--context"),
    (("qwen3-8b", *ONE, "--input-tokens", "30000", "--output-tokens", "20000"), "40960"),
    (("qwen3-8b", "--gpu", "m3 ultra", "--engine", "vllm"), "vllm"),
    (("qwen3.6-27b", *TWO, "--pp", "2", "--spec", "mtp:3"), "mtp"),
    (("qwen3-8b", *ONE, "--ep", "4"), "--ep 1"),
    (("qwen3-8b", *ONE, "--html", "."), "`.`"),
]


@pytest.mark.parametrize(("args", "words"), REFUSED, ids=[" ".join(args) for args, _ in REFUSED])
def test_bad_input_is_one_line_and_a_hint(args, words):
    message = refusal(*args)
    assert words in message
    assert "\n" not in message


def test_a_configuration_serves_where_a_model_is_not_listed_right_here_or_elsewhere(tmp_path):
    write_config(tmp_path / "models" / "mine", **AWQ)
    answer = plan("models/mine", *TWO)  # found without a dot in front
    assert {p["quant"] for p in answer["plans"]} == {"awq"}
    assert "the configuration says AWQ 4-bit" in answer["notes"]
    refusal("models/mine", *ONE, "--quant", "fp8")
    write_config(tmp_path)
    assert "--served-model-name config.json" not in best("./config.json", *ONE)["launch"][0]
    answer = best("./config.json", *ONE, "--quant", "awq")
    assert answer["quant"] == "awq"
    assert "path/to/" in answer["launch"][0]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (
            "config.json",
            json.dumps({**CONFIG, "quantization_config": {"quant_method": "brand-new"}}),
            "is quantized with `brand-new`, which skep does not know",
        ),
        (
            "config.json",
            json.dumps({**CONFIG, "model_type": "bert", "architectures": ["BertForMaskedLM"]}),
            "",
        ),
        ("config.json", "{", "config.json` "),
        ("config.json", "null", "config.json` "),
        ("broken.gguf", "GGUF\x03\0\0\0", ""),
    ],
    ids=[
        "unknown quantization",
        "a model that writes nothing",
        "cut off",
        "null",
        "a broken GGUF",
    ],
)
def test_a_file_that_cannot_be_planned_for_is_named_in_plain_words(
    tmp_path, name, content, expected
):
    (tmp_path / name).write_text(content)
    message = refusal(f"./{name}", *ONE)
    assert expected in message
    assert "NoneType" not in message


def test_without_a_rig_it_is_this_machine(two_3090s):
    answer = plan("qwen3.6-27b")
    assert answer["plans"][0]["rig"] == "this machine (2x rtx-3090)"
    assert answer["rigs"][0]["pairs"][0]["kind"] == "nvlink"


@pytest.mark.slow
def test_a_promise_is_held_against_the_forecast():
    tight = ("qwen3.6-27b", *TWO, "--slo", "ttft=1ms")
    assert not any(p["meets_slo"] for p in plan(*tight)["plans"])
    assert "NOT within --slo" in shown(*tight).out
    assert best("qwen3.6-27b", *TWO, "--slo", "ttft=1m")["meets_slo"]


@pytest.mark.parametrize(
    ("name", "full_name"),
    [("h100", "h100-pcie"), ("rtx 6000", "rtx-pro-6000"), ("rtx-4060-ti", "rtx-4060-ti-8gb")],
)
def test_what_a_short_name_was_taken_for_is_said(name, full_name):
    assert any(full_name in note for note in plan("qwen3-8b", "--gpu", name)["notes"])


SHOWN = {
    "nvfp4 is not offered on AMD": (
        "qwen3-8b --gpu mi355x",
        lambda plans: "nvfp4" not in {p["quant"] for p in plans},
    ),
    "a Spark is started with what is free on it": (
        "qwen3-8b --gpu dgx-spark",
        lambda plans: plans[0]["utilization"] <= 0.85,
    ),
    "the command carries what the rules ask for": (
        "llama-3.1-8b --gpu v100 --quant bf16",
        lambda plans: "--dtype half" in plans[0]["launch"][0],
    ),
}


@pytest.mark.parametrize(("words", "right"), SHOWN.values(), ids=SHOWN)
def test_a_plan_fits_its_cards(words, right):
    assert right(plan(*words.split())["plans"])


def test_a_note_agrees_with_the_plans_and_several_machines_are_called_several():
    answer = plan("qwen3-235b-a22b", "--gpu", "2x dgx-spark")
    assert (answer["plans"][0]["launch"], answer["plans"][0]["up"]) == ([], None)
    assert any("2 machines" in note for note in answer["notes"])
    assert any("is several machines" in line for line in answer["plans"][0]["caveats"])
    answer = plan("qwen3.6-35b-a3b", *TWO, "--quant", "awq", "--spec", "mtp:3")
    assert {p["spec"] for p in answer["plans"]} == {"mtp:3"}
    assert not any(note.startswith("no speculation offered") for note in answer["notes"])


def test_llama_cpp_is_planned_where_vllm_does_not_run_and_reaches_what_is_published():
    assert {
        p["engine"] for p in call("plan", "llama-3.1-8b", "--gpu", "p40", "--json").json["plans"]
    } == {"llamacpp"}
    assert (
        call("plan", "unsloth/Qwen3-32B-GGUF", *TWO, "--json").json["plans"][0]["engine"]
        == "llamacpp"
    )
    pins = ("--replicas", "2", "--tp", "1", "--quant", "awq", "--agents", "4")
    answer = plan("qwen3-8b", "--gpu", "rtx-5090 + rtx-3090", *TWO, *pins)
    speed = {p["rig"]: p["predicted"][2]["effective_tok_s"] for p in answer["plans"]}
    assert speed["rtx-5090 + rtx-3090"] > 1.2 * speed["2x rtx-3090"]
    pins = (
        "--engine",
        "llamacpp",
        "--agents",
        "1",
        "--input-tokens",
        "64",
        "--output-tokens",
        "128",
    )
    assert best("gpt-oss-20b", "--gpu", "dgx-spark", *pins)["predicted"][0]["high"] >= 79
    memory = best("gpt-oss-20b", *ONE, "--engine", "llamacpp")["memory"]
    assert {term["term"]: term["bytes"] for term in memory}["weights"] <= 11.28 * 2**30


def test_a_plan_loads_neither_a_store_nor_what_draws_and_needs_no_unicode(env):
    """Half a second is the time somebody waits for it."""
    heavy = "('rich', 'pydantic', 'asyncio', 'sqlite3', 'jinja2', 'skep.host.facts')"
    code = f"import sys, skep.report.plan; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    command = [sys.executable, "-m", "skep", "plan", "qwen3-8b", *ONE]
    done = subprocess.run(
        command, env={**env, "PYTHONIOENCODING": "ascii"}, capture_output=True, timeout=60
    )
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("llama", "`llama-3.3-70b`"),
        ("qwen3.6", "`qwen3.6-27b` or `qwen3.6-35b-a3b`?"),
        ("granite-4", "`granite-4.1-8b`?"),
        ("mistral-small", "`mistral-small-3.2-24b`"),
        ("ministral-14b", "`ministral-3-14b`?"),
        ("deepseek-v4", "`deepseek-v4-flash`?"),
        ("deepseek", "`deepseek-v4-flash`"),
    ],
)
def test_a_short_name_gets_the_full_names_that_it_may_stand_for(typed, meant):
    hint = refusal(typed, *ONE)
    assert f"did you mean `{typed[:5]}" in hint
    assert meant in hint


def test_the_error_for_an_unknown_model_names_the_way_to_plan_any_other():
    hint = refusal("step-3.5-flash", *ONE)
    assert "any other model plans from its config.json" in hint
    assert "`skep plan path/to/config.json`" in hint


def test_what_the_hint_for_search_says_of_plan_can_be_done(tmp_path):
    """It said that a plan takes the name of any model on the hub:
    skep reads no file from there.
    """
    write_config(tmp_path / "path" / "to")
    (planned,) = re.findall(r"`skep (plan [^`]+)`", refused("search"))
    assert " on rtx-3090 for 4 agents: " in call(*planned.split(), *ONE, check=0).out
    refusal("stepfun-ai/Step-3.5-Flash", *ONE)


@pytest.mark.parametrize(
    ("typed", "chip"), [("mac studio", "apple-m3-ultra"), ("MacBook Pro", "apple-m4-max")]
)
def test_a_mac_is_asked_for_its_chip(typed, chip):
    hint = refusal("qwen3-8b", "--gpu", typed)
    assert f"did you mean `{chip}`" in hint
    assert "strix" not in hint


def test_a_mac_studio_with_its_chip_is_known():
    assert (
        best("qwen3-8b", "--gpu", "Mac Studio M3 Ultra", "--engine", "llamacpp")["rig"]
        == "apple-m3-ultra"
    )


def test_system_memory_for_experts_is_among_what_would_fit():
    hint = refusal("kimi-k2", "--gpu", "8x rtx-3090", "--engine", "vllm", code=3)
    assert "GiB of system memory for experts" in hint
    assert "nothing:" not in hint


@pytest.mark.parametrize(
    ("words", "tried", "not_tried"),
    [
        ("kimi-k2 --gpu strix-halo", "tasks of 2,048 tokens", ("system memory", "such cards")),
        ("llama-3.1-405b --gpu rtx-3060", "up to 16 such cards", ("system memory",)),
        (
            "llama-3.1-405b --gpu 16xrtx-3060 --quant bf16",
            "fewer bits",
            ("system memory", "such cards"),
        ),
    ],
)
def test_where_nothing_would_fit_the_hint_says_what_was_tried_and_no_more(words, tried, not_tried):
    """Unified memory was said to have been tried with system memory beside it and with 15 more
    cards.
    """
    hint = refused("plan", *words.split(), code=3)
    assert "nothing like it fits either" in hint
    assert tried in hint
    assert not [word for word in not_tried if word in hint]


@pytest.mark.parametrize("flag", ["--prompt-tokens", "--context"])
def test_a_shorter_context_is_among_what_would_fit(flag):
    words = ("plan", "qwen3.6-27b", *ONE, "--engine", "vllm", "--quant", "int4")
    hint = refused(*words, flag, "250000", code=3)
    shorter = re.search(rf"what would fit: {flag} (\d+);", hint)[1]
    call(*words, flag, shorter, check=0)
