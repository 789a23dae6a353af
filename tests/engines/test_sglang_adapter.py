"""SGLang: a launch as its command line and variables, and what is refused before a start."""

import pytest

from skep.catalog.options import Draft, EngineOptions
from skep.engines.base import Launch
from skep.engines.sglang import Sglang
from skep.errors import UserError
from skep.testing.speaker import write_program


def launch(slots=4, **fields):
    options = {name: fields.pop(name) for name in tuple(fields) if name in EngineOptions.__slots__}
    fields = {"checkpoint": "Qwen/Qwen3-8B", "context_tokens": 8192, "port": 9001, **fields}
    return Launch("m-0", "sglang", "qwen3-8b", None, slots=slots, threads=0, options=EngineOptions(**options), **fields)


def flags(**fields):
    return Sglang().arguments(launch(**fields))


def value(words, flag):
    return words[words.index(flag) + 1]


def test_a_launch_in_sglangs_words():
    words = flags(
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
    words = flags(tp=2, dp=2, ep=True, slots=8)
    assert [value(words, f) for f in ("--tp-size", "--dp-size", "--ep-size", "--max-running-requests")] == [
        "4", "2", "4", "8",
    ]  # fmt: skip
    assert "--enable-dp-attention" in words


def test_prefill_in_one_piece_is_a_chunk_of_minus_one():
    assert value(flags(chunked_prefill=False), "--chunked-prefill-size") == "-1"
    with pytest.raises(UserError, match="batched_tokens is the size of a chunk"):
        Sglang().check(launch(chunked_prefill=False, batched_tokens=512))


def test_ngrams_need_no_steps_and_a_draft_model_is_named():
    assert "--speculative-num-steps" not in flags(draft=Draft("ngram", 4))
    words = flags(draft=Draft("draft", 4, "a/b"))
    assert (value(words, "--speculative-algorithm"), value(words, "--speculative-draft-model-path")) == (
        "STANDALONE", "a/b",
    )  # fmt: skip


def test_every_flag_a_launch_may_use_is_one_of_sglangs(tmp_path):
    """The stand-in lists those of its server_args.py; a wrong one is told with its version."""
    program = str(tmp_path / "python-with-sglang")
    write_program(program, "skep.testing.sglang_speaker")
    engine = Sglang(cache_dir=tmp_path)
    everything = launch(
        binary=program, tp=2, dp=2, pp=2, ep=True, quant="awq", dtype="half", kv="fp8_e4m3", memory_share=0.8,
        graphs=False, batched_tokens=512, prefix_cache=False, draft=Draft("eagle", 3, "a/b"), p2p="off",
        custom_all_reduce=False, trust_remote_code=True, reasoning_parser="qwen3", tool_parser="qwen",
        chat_template="chatml",
    )  # fmt: skip
    engine.check(everything)
    assert engine.version() == "sglang 0.5.12"
    assert engine.argv(everything)[:3] == [program, "-m", "sglang.launch_server"]
    with pytest.raises(UserError, match=r"sglang 0\.5\.12 does not know the flag `--disable-cudagraph`"):
        engine.check(launch(binary=program, extra=("--disable-cudagraph",)))
