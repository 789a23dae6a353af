"""llama-server: a launch as its command line and variables, and what is refused before a start."""

from pathlib import Path

import pytest

from skep.catalog.options import Draft, EngineOptions
from skep.engines.base import Launch
from skep.engines.llamacpp import LlamaCpp
from skep.errors import UserError


def launch(slots=5, **fields):
    options = {name: fields.pop(name) for name in tuple(fields) if name in EngineOptions.__slots__}
    fields = {"weights": Path("/models/m.gguf"), "context_tokens": 8192, "threads": 6, "port": 9001, **fields}
    return Launch("m-0", "llamacpp", "gpt-oss-20b", slots=slots, options=EngineOptions(**options), **fields)


def flags(known=None, **fields):
    return LlamaCpp().arguments(launch(**fields), known)


def value(words, flag):
    return words[words.index(flag) + 1]


def test_the_context_of_all_slots_together_is_what_it_is_told():
    words = flags()
    expected = {"--model": "/models/m.gguf", "--alias": "gpt-oss-20b", "--ctx-size": "40960", "--parallel": "5",
                "--port": "9001", "--host": "127.0.0.1", "--threads": "6", "--n-gpu-layers": "999"}  # fmt: skip
    assert {flag: value(words, flag) for flag in expected} == expected
    assert {"--jinja", "--metrics", "--slots"} <= set(words)
    assert value(flags(context_tokens=0), "--ctx-size") == "0"
    assert "--threads" not in flags(threads=0)


def test_layers_on_the_card_are_left_to_who_names_them():
    words = flags(extra=("-ngl", "20"))
    assert "--n-gpu-layers" not in words
    assert words[-2:] == ["-ngl", "20"]


def test_cards_share_a_model_by_layer_or_by_tensor():
    words = flags(pp=2, card_shares=(32.0, 24.0))
    assert (value(words, "--split-mode"), value(words, "--tensor-split")) == ("layer", "32,24")
    words = flags(tp=2)
    assert [value(words, f) for f in ("--split-mode", "--fit", "--flash-attn")] == ["tensor", "off", "on"]
    assert value(flags(split="none"), "--split-mode") == "none"


def test_a_quantized_cache_wants_flash_attention():
    words = flags(kv="q8_0", batched_tokens=4096, prefix_cache=False)
    assert [value(words, f) for f in ("--cache-type-k", "--cache-type-v", "--flash-attn")] == ["q8_0", "q8_0", "on"]
    assert (value(words, "--ubatch-size"), value(words, "--batch-size")) == ("4096", "4096")
    assert "--no-cache-prompt" in words
    assert "--flash-attn" not in flags()
    assert value(flags(flash_attention=False), "--flash-attn") == "off"
    assert value(flags(flash_attention=True), "--flash-attn") == "on"


def test_batch_micro_batch_and_threads_are_told_where_they_are_given():
    words = flags(batch=1024, batched_tokens=256, threads_batch=8)
    told = ("--batch-size", "--ubatch-size", "--threads-batch", "--threads")
    assert [value(words, flag) for flag in told] == ["1024", "256", "8", "6"]
    assert not {"--batch-size", "--ubatch-size", "--threads-batch"} & set(flags())


def test_the_cache_is_one_or_one_for_each_slot():
    bounded = frozenset({"--kv-unified", "--kv-unified-per-slot", "--no-kv-unified"})
    assert "--no-kv-unified" in flags(bounded, kv_layout="split")
    assert "--kv-unified-per-slot" not in flags(bounded, kv_layout="split")
    assert value(flags(bounded, kv_layout="unified"), "--kv-unified-per-slot") == "8192"
    assert "--kv-unified" in flags(kv_layout="unified")
    assert not {"--kv-unified", "--no-kv-unified"} & set(flags())


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
    found = flags(known, draft=draft)
    start = found.index(words[0])
    assert found[start : start + len(words)] == words


def test_what_only_some_versions_have_is_used_only_there():
    assert "--slots" not in flags(OLD)
    assert "--no-webui" in flags(OLD)
    new = flags(frozenset({"--slots", "--no-ui", "--no-webui", "--kv-unified-per-slot"}))
    assert ("--no-ui" in new, "--no-webui" in new) == (True, False)
    assert value(new, "--kv-unified-per-slot") == "8192"


def test_graphs_and_links_are_told_by_variables():
    env = LlamaCpp().environment(launch(graphs=False, p2p="off", gpus=(1,)))
    assert env["GGML_CUDA_DISABLE_GRAPHS"] == "1"
    assert env["NCCL_P2P_DISABLE"] == "1"
    assert env["CUDA_VISIBLE_DEVICES"] == "1"


def test_a_model_of_the_hub_is_fetched_by_llama_server_itself():
    words = flags(weights=None, checkpoint="ggml-org/gpt-oss-20b-GGUF:Q4_K_M")
    assert value(words, "--hf-repo") == "ggml-org/gpt-oss-20b-GGUF:Q4_K_M"
    assert "--model" not in words


def test_a_file_of_the_hub_and_one_at_home_are_named_as_without_a_shell(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    words = LlamaCpp().argv(launch(weights=None, checkpoint="org/name-GGUF:sub-Q4.gguf", binary="/gone"))
    assert words[1:5] == ["--hf-repo", "org/name-GGUF", "--hf-file", "sub-Q4.gguf"]
    words = LlamaCpp().argv(launch(weights=None, checkpoint="~/models/m.gguf", binary="/gone"))
    assert value(words, "--model") == "/home/me/models/m.gguf"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"quant": "q4_k_m"}, "quant"), ({"dtype": "bf16"}, "dtype"), ({"dp": 2}, "dp = 2"),
        ({"ep": True}, "ep = true"),
        ({"memory_share": 0.9}, "memory_share = 0.9"), ({"tool_parser": "hermes"}, "tool_parser"),
        ({"custom_all_reduce": False}, "custom_all_reduce"), ({"trust_remote_code": True}, "trust_remote_code"),
        ({"chunked_prefill": False}, "chunked_prefill"), ({"tp": 2, "pp": 2}, "tp=2 and pp=2"),
        ({"kv": "q8_0", "flash_attention": False}, "wants flash attention"), ({"batch": 4}, "batch = 4 does not hold"),
        ({"tp": 2, "flash_attention": False}, "a split by tensor"), ({"kv_layout": "paged"}, 'kv_layout = "paged"'),
        ({"batch": 64, "batched_tokens": 128}, "batched_tokens = 128 is more than batch = 64"),
        ({"split": "rows"}, 'split = "rows"'), ({"split": "layer", "tp": 2}, "does not go with tp=2"),
        ({"tp": 4, "gpus": (0, 1)}, "takes 4 cards, but gpus names 2"),
        ({"card_shares": (1.0,), "gpus": (0, 1)}, "1 shares for 2 gpus"),
        ({}, "`/models/m.gguf` does not exist"), ({"weights": None}, "no model file for `gpt-oss-20b`"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line_with_what_to_do(fields, said):
    with pytest.raises(UserError, match="llamacpp: ") as caught:
        LlamaCpp().check(launch(**fields))
    assert said in caught.value.message
    assert caught.value.hint


def test_a_folder_is_no_model_file(tmp_path):
    with pytest.raises(UserError, match="is a folder"):
        LlamaCpp().check(launch(weights=tmp_path))
