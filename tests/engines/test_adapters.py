"""The adapters: a launch as a command line and variables, and what is refused before a start."""

import asyncio
import json
import stat
import subprocess
import urllib.request
from pathlib import Path

import pytest

from skep.catalog.presets import Draft, EngineOptions
from skep.engines.base import Launch, engine_named
from skep.engines.llamacpp import LlamaCpp
from skep.engines.ollama import Ollama, manifest_of
from skep.engines.sglang import Sglang
from skep.engines.vllm import Vllm
from skep.errors import UserError
from skep.testing.speakers import write_program
from skep.wire.listen import free_port
from skep.wire.openai import StreamReader

QWEN = {"model": "qwen3-8b", "checkpoint": "Qwen/Qwen3-8B", "slots": 4, "threads": 0, "weights": None}
USUAL = {
    "vllm": QWEN,
    "sglang": QWEN,
    "llamacpp": {"model": "gpt-oss-20b", "weights": Path("/models/m.gguf"), "slots": 5, "threads": 6},
    "ollama": {"model": "gemma3:27b", "slots": 4, "threads": 0, "weights": None},
}


def launch(engine, **fields):
    """Of the usual model of that engine; options are given by their names."""
    options = {name: fields.pop(name) for name in tuple(fields) if name in EngineOptions.__slots__}
    fields = {"context_tokens": 8192, "port": 9001, **USUAL[engine], **fields}
    return Launch("m-0", engine, options=EngineOptions(**options), **fields)


def vllm(**fields):
    return Vllm().arguments(launch("vllm", **fields))


def sglang(**fields):
    return Sglang().arguments(launch("sglang", **fields))


def llamacpp(known=None, **fields):
    return LlamaCpp().arguments(launch("llamacpp", **fields), known)


def value(words, flag):
    return words[words.index(flag) + 1]


REFUSED = {
    "vllm": [
        ({"split": "layer"}, 'split = "layer"'),
        ({"card_shares": (1.0, 2.0)}, "card_shares"),
        ({"tp": 2, "gpus": (0,)}, "tp=2 takes 2 cards, but gpus names 1"),
        ({"gpus": (0, 1)}, "takes 1 card, but gpus names 2"),
        ({"draft": Draft("eagle", 3)}, "needs a draft model"),
        ({"draft": Draft("mtp", 0)}, "0 tokens"),
        ({"p2p": "maybe"}, "p2p `maybe`"),
        ({"memory_share": 1.5}, "1.5"),
        ({"ep": True}, "one card"),
        ({"checkpoint": None}, "no checkpoint for `qwen3-8b`"),
        ({"checkpoint": "/gone/model"}, "`/gone/model` does not exist"),
        ({"chat_template": "/gone/a.jinja"}, "chat template `/gone/a.jinja` does not exist"),
        ({"draft": Draft("draft", 3, "/gone/draft")}, "draft model `/gone/draft` does not exist"),
    ],
    "llamacpp": [
        ({"quant": "q4_k_m"}, "quant"), ({"dtype": "bf16"}, "dtype"), ({"dp": 2}, "dp = 2"),
        ({"ep": True}, "ep = true"),
        ({"memory_share": 0.9}, "memory_share = 0.9"), ({"tool_parser": "hermes"}, "tool_parser"),
        ({"custom_all_reduce": False}, "custom_all_reduce"), ({"trust_remote_code": True}, "trust_remote_code"),
        ({"chunked_prefill": False}, "chunked_prefill"), ({"tp": 2, "pp": 2}, "tp=2 and pp=2"),
        ({"kv": "q8_0", "flash_attention": False}, "needs flash attention"), ({"batch": 4}, "batch = 4 is too small"),
        ({"tp": 2, "flash_attention": False}, "a split by tensor"), ({"kv_layout": "paged"}, 'kv_layout = "paged"'),
        ({"batch": 64, "batched_tokens": 128}, "batched_tokens = 128 is more than batch = 64"),
        ({"split": "rows"}, 'split = "rows"'), ({"split": "layer", "tp": 2}, "does not fit tp=2"),
        ({"tp": 4, "gpus": (0, 1)}, "takes 4 cards, but gpus names 2"),
        ({"card_shares": (1.0,), "gpus": (0, 1)}, "1 shares for 2 gpus"),
        ({}, "`/models/m.gguf` does not exist"), ({"weights": None}, "no model file for `gpt-oss-20b`"),
    ],
    "ollama": [
        ({"quant": "q4_0"}, "comes with the tag"), ({"tp": 2}, "tp = 2"), ({"draft": Draft("mtp", 2)}, "draft = mtp:2"),
        ({"kv": "fp8"}, 'kv = "fp8"'), ({"extra": ("--verbose",)}, "has no flags"), ({"p2p": "off"}, "p2p"),
        ({"checkpoint": "gemma3:27b", "model": "gemma"}, "cannot be served as `gemma`"),
    ],
    "sglang": [
        ({"chunked_prefill": False, "batched_tokens": 512}, "batched_tokens is the size of a chunk"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "fields", "said"), [(engine, *row) for engine, rows in REFUSED.items() for row in rows]
)
def test_what_cannot_be_is_refused_in_one_line_with_what_to_do(engine, fields, said):
    with pytest.raises(UserError, match=f"{engine}: ") as caught:
        engine_named(engine).check(launch(engine, **fields))
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


# vLLM


def test_a_plain_launch_says_model_name_place_and_sizes():
    assert vllm() == [
        "Qwen/Qwen3-8B", "--served-model-name", "qwen3-8b", "--host", "127.0.0.1", "--port", "9001",
        "--max-num-seqs", "4", "--max-model-len", "8192",
    ]  # fmt: skip
    assert "--max-model-len" not in vllm(context_tokens=0)


def test_a_recipe_of_two_3090s_is_told_in_full():
    words = vllm(
        quant="awq_marlin", dtype="float16", kv="fp8_e5m2", tp=2, ep=True, memory_share=0.92, graphs=True,
        batched_tokens=4096, prefix_cache=True, chunked_prefill=False, draft=Draft("mtp", 3), custom_all_reduce=False,
        reasoning_parser="qwen3", tool_parser="qwen3_coder", trust_remote_code=True, gpus=(0, 1),
        extra=("--seed", "1"),
    )  # fmt: skip
    expected = {
        "--quantization": "awq_marlin", "--dtype": "float16", "--kv-cache-dtype": "fp8_e5m2",
        "--tensor-parallel-size": "2", "--gpu-memory-utilization": "0.92", "--max-num-batched-tokens": "4096",
        "--reasoning-parser": "qwen3", "--tool-call-parser": "qwen3_coder",
    }  # fmt: skip
    assert {flag: value(words, flag) for flag in expected} == expected
    switches = {"--enable-expert-parallel", "--no-enforce-eager", "--enable-prefix-caching", "--trust-remote-code",
                "--no-enable-chunked-prefill", "--disable-custom-all-reduce", "--enable-auto-tool-choice"}  # fmt: skip
    assert switches <= set(words)
    assert json.loads(value(words, "--speculative-config")) == {"method": "mtp", "num_speculative_tokens": 3}
    assert words[-2:] == ["--seed", "1"]


@pytest.mark.parametrize(
    ("draft", "config"),
    [
        (Draft("ngram", 2), {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}),
        (Draft("eagle", 3, "a/b"), {"method": "eagle3", "num_speculative_tokens": 3, "model": "a/b"}),
        (Draft("draft", 5, "a/b"), {"method": "draft_model", "num_speculative_tokens": 5, "model": "a/b"}),
        (Draft("dflash", 7, "a/b"), {"method": "dflash", "num_speculative_tokens": 7, "model": "a/b"}),
    ],
)
def test_each_way_of_drafting_has_its_configuration(draft, config):
    assert json.loads(value(vllm(draft=draft), "--speculative-config")) == config


def test_sequences_are_counted_for_one_rank_of_data_parallelism():
    assert value(vllm(slots=9, dp=2), "--max-num-seqs") == "5"


def test_cards_are_those_that_nvidia_smi_numbers_so():
    env = Vllm().environment(launch("vllm", gpus=(2, 3), tp=2, p2p="nvlink", env=(("A", "1"),)))
    assert env == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "2,3", "NCCL_P2P_LEVEL": "NVL", "A": "1",
        "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    }  # fmt: skip
    assert Vllm(vendor="amd").environment(launch("vllm", gpus=(1,)))["HIP_VISIBLE_DEVICES"] == "1"


def test_cards_that_may_not_talk_directly_do_not_do_so_by_the_custom_all_reduce_either():
    asked = launch("vllm", tp=2, p2p="off")
    assert Vllm().environment(asked)["NCCL_P2P_DISABLE"] == "1"
    assert "--disable-custom-all-reduce" in Vllm().arguments(asked)
    assert "--disable-custom-all-reduce" not in vllm(tp=2, p2p="off", custom_all_reduce=True)


def test_the_hub_is_not_asked_for_what_lies_in_a_folder():
    assert Vllm().environment(launch("vllm", checkpoint="/models/m"))["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in Vllm().environment(launch("vllm"))
    assert "HF_HUB_OFFLINE" not in Vllm().environment(launch("vllm", checkpoint="/m", draft=Draft("draft", 2, "a/b")))


def test_a_folder_without_a_config_is_no_checkpoint(tmp_path):
    with pytest.raises(UserError, match=r"has no config\.json"):
        Vllm().check(launch("vllm", checkpoint=str(tmp_path)))


OWN = """\
  --served-model-name NAME
  --host H
  --port P
  --max-num-seqs N
  --max-model-len N
  --enable-prefix-caching, --no-enable-prefix-caching
  --enable-prompt-tokens-details, --no-enable-prompt-tokens-details
"""


@pytest.fixture
def program(tmp_path):
    """A vLLM that knows few flags."""
    text = OWN + "".join(f"  --other-{n} N\n" for n in range(20))
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] && echo 0.8.5\n')
    path = tmp_path / "vllm"
    path.write_text(f'#!/bin/sh\n# {python}\n[ "$2" = --help=all ] && exit 2\ncat <<END\n{text}\nEND\n')
    for one in (python, path):
        one.chmod(one.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_flag_that_the_installed_version_does_not_know_is_told_before_the_start(program, tmp_path):
    engine = Vllm(cache_dir=tmp_path / "cache")
    engine.check(launch("vllm", binary=program))
    with pytest.raises(UserError, match="does not know the flag `--enable-prefix-cachin-x` ") as caught:
        engine.check(launch("vllm", binary=program, extra=("--enable-prefix-cachin-x",)))
    assert "from `extra`" in caught.value.message
    assert "did you mean `--enable-prefix-caching`?" in caught.value.hint
    with pytest.raises(UserError, match="does not know the flag `--speculative-config`"):
        engine.check(launch("vllm", binary=program, draft=Draft("mtp", 2)))


def test_figures_of_a_request_are_asked_for_where_the_version_has_them(program, tmp_path):
    engine = Vllm(cache_dir=tmp_path / "cache")
    engine.check(launch("vllm", binary=program))
    words = engine.argv(launch("vllm", binary=program))
    assert words[:3] == [program, "serve", "Qwen/Qwen3-8B"]
    assert "--enable-prompt-tokens-details" in words
    assert "--enable-per-request-metrics" not in words
    assert "--enable-prompt-tokens-details" not in engine.argv(
        launch("vllm", binary=program, extra=("--disable-log-stats",))
    )


# SGLang


def test_a_launch_in_sglangs_words():
    words = sglang(
        tp=2, ep=True, kv="fp8_e4m3", memory_share=0.85, graphs=False, prefix_cache=False, batched_tokens=2048,
        draft=Draft("mtp", 3), quant="awq", dtype="half", tool_parser="qwen25", reasoning_parser="qwen3",
    )  # fmt: skip
    expected = {
        "--model-path": "Qwen/Qwen3-8B", "--served-model-name": "qwen3-8b", "--host": "127.0.0.1", "--port": "9001",
        "--max-running-requests": "4", "--context-length": "8192", "--tp-size": "2", "--ep-size": "2",
        "--kv-cache-dtype": "fp8_e4m3", "--mem-fraction-static": "0.85", "--chunked-prefill-size": "2048",
        "--speculative-algorithm": "NEXTN", "--speculative-num-steps": "3", "--speculative-num-draft-tokens": "4",
        "--quantization": "awq", "--dtype": "half", "--tool-call-parser": "qwen25", "--reasoning-parser": "qwen3",
    }  # fmt: skip
    assert {flag: value(words, flag) for flag in expected} == expected
    assert {"--disable-cuda-graph", "--disable-radix-cache", "--enable-metrics"} <= set(words)


def test_data_parallelism_counts_cards_and_requests_of_all_ranks():
    words = sglang(tp=2, dp=2, ep=True, slots=8)
    assert [value(words, f) for f in ("--tp-size", "--dp-size", "--ep-size", "--max-running-requests")] == [
        "4", "2", "4", "8",
    ]  # fmt: skip
    assert "--enable-dp-attention" in words


def test_prefill_in_one_piece_is_a_chunk_of_minus_one():
    assert value(sglang(chunked_prefill=False), "--chunked-prefill-size") == "-1"


def test_ngrams_need_no_steps_and_a_draft_model_is_named():
    assert "--speculative-num-steps" not in sglang(draft=Draft("ngram", 4))
    words = sglang(draft=Draft("draft", 4, "a/b"))
    assert (value(words, "--speculative-algorithm"), value(words, "--speculative-draft-model-path")) == (
        "STANDALONE", "a/b",
    )  # fmt: skip


def test_every_flag_a_launch_may_use_is_one_of_sglangs(tmp_path):
    """The stand-in lists those of its server_args.py; a wrong one is told with its version."""
    program = str(tmp_path / "python-with-sglang")
    write_program(program, "sglang")
    engine = Sglang(cache_dir=tmp_path)
    everything = launch(
        "sglang", binary=program, tp=2, dp=2, pp=2, ep=True, quant="awq", dtype="half", kv="fp8_e4m3", memory_share=0.8,
        graphs=False, batched_tokens=512, prefix_cache=False, draft=Draft("eagle", 3, "a/b"), p2p="off",
        custom_all_reduce=False, trust_remote_code=True, reasoning_parser="qwen3", tool_parser="qwen",
        chat_template="chatml",
    )  # fmt: skip
    engine.check(everything)
    assert engine.version() == "sglang 0.5.12"
    assert engine.argv(everything)[:3] == [program, "-m", "sglang.launch_server"]
    with pytest.raises(UserError, match=r"sglang 0\.5\.12 does not know the flag `--disable-cudagraph`"):
        engine.check(launch("sglang", binary=program, extra=("--disable-cudagraph",)))


# llama-server


def test_the_context_of_all_slots_together_is_what_it_is_told():
    words = llamacpp()
    expected = {"--model": "/models/m.gguf", "--alias": "gpt-oss-20b", "--ctx-size": "40960", "--parallel": "5",
                "--port": "9001", "--host": "127.0.0.1", "--threads": "6", "--n-gpu-layers": "999"}  # fmt: skip
    assert {flag: value(words, flag) for flag in expected} == expected
    assert {"--jinja", "--metrics", "--slots"} <= set(words)
    assert value(llamacpp(context_tokens=0), "--ctx-size") == "0"
    assert "--threads" not in llamacpp(threads=0)


def test_layers_on_the_card_are_left_to_who_names_them():
    words = llamacpp(extra=("-ngl", "20"))
    assert "--n-gpu-layers" not in words
    assert words[-2:] == ["-ngl", "20"]


def test_cards_share_a_model_by_layer_or_by_tensor():
    words = llamacpp(pp=2, card_shares=(32.0, 24.0))
    assert (value(words, "--split-mode"), value(words, "--tensor-split")) == ("layer", "32,24")
    words = llamacpp(tp=2)
    assert [value(words, f) for f in ("--split-mode", "--fit", "--flash-attn")] == ["tensor", "off", "on"]
    assert value(llamacpp(split="none"), "--split-mode") == "none"


def test_a_quantized_cache_wants_flash_attention():
    words = llamacpp(kv="q8_0", batched_tokens=4096, prefix_cache=False)
    assert [value(words, f) for f in ("--cache-type-k", "--cache-type-v", "--flash-attn")] == ["q8_0", "q8_0", "on"]
    assert (value(words, "--ubatch-size"), value(words, "--batch-size")) == ("4096", "4096")
    assert "--no-cache-prompt" in words
    assert "--flash-attn" not in llamacpp()
    assert value(llamacpp(flash_attention=False), "--flash-attn") == "off"
    assert value(llamacpp(flash_attention=True), "--flash-attn") == "on"


def test_batch_micro_batch_and_threads_are_told_where_they_are_given():
    words = llamacpp(batch=1024, batched_tokens=256, threads_batch=8)
    told = ("--batch-size", "--ubatch-size", "--threads-batch", "--threads")
    assert [value(words, flag) for flag in told] == ["1024", "256", "8", "6"]
    assert not {"--batch-size", "--ubatch-size", "--threads-batch"} & set(llamacpp())


def test_the_cache_is_one_or_one_for_each_slot():
    bounded = frozenset({"--kv-unified", "--kv-unified-per-slot", "--no-kv-unified"})
    assert "--no-kv-unified" in llamacpp(bounded, kv_layout="split")
    assert "--kv-unified-per-slot" not in llamacpp(bounded, kv_layout="split")
    assert value(llamacpp(bounded, kv_layout="unified"), "--kv-unified-per-slot") == "8192"
    assert "--kv-unified" in llamacpp(kv_layout="unified")
    assert not {"--kv-unified", "--no-kv-unified"} & set(llamacpp(bounded))  # its own default is one for each slot


OLD = frozenset({"--model-draft", "--draft-max", "--no-webui"})


@pytest.mark.parametrize(
    ("draft", "known", "words"),
    [
        (Draft("mtp", 3), None, ["--spec-type", "draft-mtp", "--spec-draft-n-max", "3"]),
        (Draft("draft", 8, "/d.gguf"), None,
         ["--model-draft", "/d.gguf", "--spec-type", "draft-simple", "--spec-draft-n-max", "8"]),
        (Draft("draft", 8, "/d.gguf"), OLD, ["--model-draft", "/d.gguf", "--draft-max", "8"]),
        (Draft("ngram", 8), None,
         ["--spec-type", "ngram-map-k", "--spec-ngram-map-k-size-n", "3", "--spec-ngram-map-k-size-m", "8"]),
    ],
)  # fmt: skip
def test_speculation_is_named_as_the_installed_version_names_it(draft, known, words):
    found = llamacpp(known, draft=draft)
    start = found.index(words[0])
    assert found[start : start + len(words)] == words


def test_what_only_some_versions_have_is_used_only_there():
    assert "--slots" not in llamacpp(OLD)
    assert "--no-webui" in llamacpp(OLD)
    new = llamacpp(frozenset({"--slots", "--no-ui", "--no-webui"}))
    assert ("--no-ui" in new, "--no-webui" in new) == (True, False)


def test_graphs_and_links_are_told_by_variables():
    env = LlamaCpp().environment(launch("llamacpp", graphs=False, p2p="off", gpus=(1,)))
    assert env["GGML_CUDA_DISABLE_GRAPHS"] == "1"
    assert env["NCCL_P2P_DISABLE"] == "1"
    assert env["CUDA_VISIBLE_DEVICES"] == "1"


def test_a_model_of_the_hub_is_fetched_by_llama_server_itself():
    words = llamacpp(weights=None, checkpoint="ggml-org/gpt-oss-20b-GGUF:Q4_K_M")
    assert value(words, "--hf-repo") == "ggml-org/gpt-oss-20b-GGUF:Q4_K_M"
    assert "--model" not in words


def test_a_file_of_the_hub_and_one_at_home_are_named_as_without_a_shell(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    words = LlamaCpp().argv(launch("llamacpp", weights=None, checkpoint="org/name-GGUF:sub-Q4.gguf", binary="/gone"))
    assert words[1:5] == ["--hf-repo", "org/name-GGUF", "--hf-file", "sub-Q4.gguf"]
    words = LlamaCpp().argv(launch("llamacpp", weights=None, checkpoint="~/models/m.gguf", binary="/gone"))
    assert value(words, "--model") == "/home/me/models/m.gguf"


def test_a_folder_is_no_model_file(tmp_path):
    with pytest.raises(UserError, match="is a folder"):
        LlamaCpp().check(launch("llamacpp", weights=tmp_path))


# Ollama


def test_everything_is_told_by_variables():
    assert Ollama().environment(launch("ollama", kv="q8_0", pp=2, gpus=(0, 1))) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0,1", "OLLAMA_HOST": "127.0.0.1:9001",
        "OLLAMA_NUM_PARALLEL": "4", "OLLAMA_CONTEXT_LENGTH": "8192", "OLLAMA_KV_CACHE_TYPE": "q8_0",
        "OLLAMA_FLASH_ATTENTION": "1", "OLLAMA_SCHED_SPREAD": "1", "OLLAMA_MAX_LOADED_MODELS": "1",
        "OLLAMA_KEEP_ALIVE": "-1", "OLLAMA_NOPRUNE": "1", "OLLAMA_NO_CLOUD": "1",
    }  # fmt: skip
    assert "OLLAMA_CONTEXT_LENGTH" not in Ollama().environment(launch("ollama", context_tokens=0))
    assert Ollama().argv(launch("ollama", binary="/gone/ollama")) == ["/gone/ollama", "serve"]


@pytest.mark.parametrize(
    ("tag", "path"),
    [
        ("gemma3", "registry.ollama.ai/library/gemma3/latest"),
        ("gemma3:27b", "registry.ollama.ai/library/gemma3/27b"),
        ("someone/model:q4", "registry.ollama.ai/someone/model/q4"),
        ("hf.co/someone/model:Q4_K_M", "hf.co/someone/model/Q4_K_M"),
    ],
)
def test_a_tag_is_looked_for_in_the_store_where_ollama_keeps_it(tag, path):
    assert manifest_of(tag).as_posix() == path


def test_a_model_that_was_not_pulled_is_said_before_the_start(tmp_path):
    with pytest.raises(UserError, match="`gemma3:27b` is not in Ollama's store") as caught:
        Ollama().check(launch("ollama", env=(("OLLAMA_MODELS", str(tmp_path)),)))
    assert "ollama pull gemma3:27b" in caught.value.hint


def test_ollamas_own_protocol_is_read_with_its_durations(tmp_path):
    """Lines of JSON, the last with nanoseconds: what a benchmark reads is what the docs describe."""
    manifest = tmp_path / "manifests" / manifest_of("gemma3:27b")
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{}")
    program = str(tmp_path / "ollama")
    write_program(program, "ollama")
    asked = launch(
        "ollama", port=free_port(), binary=program, env=(("OLLAMA_MODELS", str(tmp_path)), ("PYTHONPATH", "src"))
    )
    engine = Ollama()
    engine.check(asked)
    assert engine.version() == "ollama 0.24.3"
    with subprocess.Popen(engine.argv(asked), env=engine.environment(asked), stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        url = f"http://127.0.0.1:{asked.port}"
        with urllib.request.urlopen(f"{url}/api/tags", timeout=5) as answer:
            assert [model["name"] for model in json.load(answer)["models"]] == ["gemma3:27b"]
        body = {"model": "gemma3:27b", "messages": [{"role": "user", "content": "hello you"}],
                "options": {"num_predict": 3}}  # fmt: skip
        with urllib.request.urlopen(f"{url}/api/chat", json.dumps(body).encode(), timeout=5) as answer:
            assert answer.headers["content-type"] == "application/x-ndjson"
            lines = answer.read()
        process.terminate()
    reading = asyncio.run(read(lines))
    assert "".join(reading.text) == "word0 word1 word2 "
    assert (reading.timings["eval_count"], reading.timings["prompt_eval_count"]) == (3, 2)
    assert reading.finish_reason == "length"


async def read(lines):
    reading = StreamReader(asyncio.get_running_loop().create_future())
    reading._stream = "ndjson"
    reading.on_body(lines, 1.0)
    reading.on_end(2.0)
    reading.digest()
    return reading
