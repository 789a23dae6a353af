"""The adapters: a launch as a command line and variables, and what is refused before a start."""

import json
from pathlib import Path

import pytest

from skep.catalog.models import all_checkpoints
from skep.catalog.presets import Draft, EngineOptions
from skep.engines.adapter import modalities_of
from skep.engines.base import Launch, engine_named
from skep.engines.llamacpp import LlamaCpp
from skep.engines.ollama import Ollama, manifest_of
from skep.engines.sglang import Sglang
from skep.engines.vllm import Vllm
from skep.errors import UserError
from skep.testing.speakers import write_program

QWEN = {
    "model": "qwen3-8b",
    "checkpoint": "Qwen/Qwen3-8B",
    "slots": 4,
    "threads": 0,
    "weights": None,
}
USUAL = {
    "vllm": QWEN,
    "sglang": QWEN,
    "llamacpp": {
        "model": "gpt-oss-20b",
        "weights": Path("/models/m.gguf"),
        "slots": 5,
        "threads": 6,
    },
    "ollama": {"model": "gemma3:27b", "slots": 4, "threads": 0, "weights": None},
}


def launch(engine, **fields):
    """Of the usual model of that engine; options are given by their names."""
    options = {name: fields.pop(name) for name in tuple(fields) if name in EngineOptions.__slots__}
    fields = {"context_tokens": 8192, "port": 9001, **USUAL[engine], **fields}
    return Launch("m-0", engine, options=EngineOptions(**options), **fields)


def words(engine, flags=None, **fields):
    return engine_named(engine).arguments(launch(engine, **fields), flags)


def value(words, flag):
    return words[words.index(flag) + 1]


REFUSED = {
    "vllm": [
        ({"split": "layer"}, 'split = "layer"'),
        ({"tp": 2, "gpus": (0,)}, "tp=2 takes 2 cards, but gpus names 1"),
        ({"gpus": (0, 1)}, "takes 1 card, but gpus names 2"),
        ({"draft": Draft("eagle", 3)}, "needs a draft model"),
        ({"memory_share": 1.5}, "1.5"),
        ({"ep": True}, "one card"),
        ({"checkpoint": None}, "no checkpoint for `qwen3-8b`"),
        ({"checkpoint": "/gone/model"}, "`/gone/model` does not exist"),
        ({"checkpoint": "/"}, "has no config.json"),
        ({"chat_template": "/gone/a.jinja"}, "chat template `/gone/a.jinja` does not exist"),
        ({"draft": Draft("draft", 3, "/gone/draft")}, "draft model `/gone/draft` does not exist"),
    ],
    "llamacpp": [
        ({"chunked_prefill": False}, "chunked_prefill"),
        ({"tp": 2, "pp": 2}, "tp=2 and pp=2"),
        ({"kv": "q8_0", "flash_attention": False}, "needs flash attention"),
        ({"batch": 4}, "batch = 4 is too small"),
        ({"tp": 2, "flash_attention": False}, "a split by tensor"),
        ({"batch": 64, "batched_tokens": 128}, "batched_tokens = 128 is more than batch = 64"),
        ({"split": "layer", "tp": 2}, "does not fit tp=2"),
        ({"tp": 4, "gpus": (0, 1)}, "takes 4 cards, but gpus names 2"),
        ({"card_shares": (1.0,), "gpus": (0, 1)}, "1 shares for 2 gpus"),
        ({}, "`/models/m.gguf` does not exist"),
        ({"weights": None}, "no model file for `gpt-oss-20b`"),
        ({"weights": Path("/")}, "is a folder"),
    ],
    "ollama": [
        ({"quant": "q4_0"}, "comes with the tag"),
        ({"tp": 2}, "tp = 2"),
        ({"draft": Draft("mtp", 2)}, "draft = mtp:2"),
        ({"kv": "fp8"}, 'kv = "fp8"'),
        ({"extra": ("--verbose",)}, "has no flags"),
        ({"p2p": "off"}, "p2p"),
        ({"kv_ram": 8}, "kv_ram = 8 cannot be told to Ollama"),
        ({"checkpoint": "gemma3:27b", "model": "gemma"}, "cannot be served as `gemma`"),
    ],
    "sglang": [
        (
            {"chunked_prefill": False, "batched_tokens": 512},
            "batched_tokens is the size of a chunk",
        ),
        ({"kv_ram": 8, "prefix_cache": False}, "prefix_cache is false"),
    ],
}


@pytest.mark.parametrize(
    ("engine", "fields", "message"),
    [(engine, *row) for engine, rows in REFUSED.items() for row in rows],
)
def test_what_cannot_be_is_refused_in_one_line_with_what_to_do(engine, fields, message):
    with pytest.raises(UserError, match=f"{engine}: ") as caught:
        engine_named(engine).check(launch(engine, **fields))
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


# a switch without a value; a flag that is not there
ON = object()
ABSENT = object()
BOUNDED = frozenset({"--kv-unified", "--kv-unified-per-slot", "--no-kv-unified"})
OLD = frozenset({"--no-webui"})
NEW = frozenset({"--slots", "--no-ui", "--no-webui"})
FIGURES = frozenset({"--enable-prompt-tokens-details"})  # of a request, where the version has them
HUB_FILE = "ggml-org/gpt-oss-20b-GGUF:Q4_K_M"
HYBRID = "Qwen/Qwen3.6-27B"
OLD_SGLANG = frozenset({"--tool-call-parser", "--reasoning-parser", "--mamba-scheduler-strategy"})
TOLD = [
    # a recipe of two RTX 3090 in full
    (
        "vllm",
        None,
        {
            "quant": "awq_marlin",
            "dtype": "float16",
            "kv": "fp8_e5m2",
            "tp": 2,
            "ep": True,
            "memory_share": 0.92,
            "graphs": True,
            "batched_tokens": 4096,
            "prefix_cache": True,
            "chunked_prefill": False,
            "custom_all_reduce": False,
            "reasoning_parser": "qwen3",
            "tool_parser": "qwen3_coder",
            "trust_remote_code": True,
            "gpus": (0, 1),
            "extra": ("--seed", "1"),
        },
        {
            "--quantization": "awq_marlin",
            "--dtype": "float16",
            "--kv-cache-dtype": "fp8_e5m2",
            "--tensor-parallel-size": "2",
            "--gpu-memory-utilization": "0.92",
            "--max-num-batched-tokens": "4096",
            "--reasoning-parser": "qwen3",
            "--tool-call-parser": "qwen3_coder",
            "--enable-expert-parallel": ON,
            "--no-enforce-eager": ON,
            "--enable-prefix-caching": ON,
            "--trust-remote-code": ON,
            "--no-enable-chunked-prefill": ON,
            "--disable-custom-all-reduce": ON,
            "--enable-auto-tool-choice": ON,
            "--seed": "1",
        },
    ),
    (
        "vllm",
        FIGURES,
        {},
        {
            "--served-model-name": "qwen3-8b",
            "--host": "127.0.0.1",
            "--port": "9001",
            "--max-num-seqs": "4",
            "--max-model-len": "8192",
            "--enable-prompt-tokens-details": ON,
        },
    ),
    # the parsers of the model, if nothing else is said
    (
        "vllm",
        None,
        {},
        {
            "--enable-auto-tool-choice": ON,
            "--tool-call-parser": "hermes",
            "--reasoning-parser": "qwen3",
            "--enable-prefix-caching": ON,
        },
    ),
    (
        "vllm",
        None,
        {"tool_parser": "none", "reasoning_parser": "none"},
        {
            "--enable-auto-tool-choice": ABSENT,
            "--tool-call-parser": ABSENT,
            "--reasoning-parser": ABSENT,
        },
    ),
    (
        "vllm",
        None,
        {"tool_parser": "mine"},
        {"--tool-call-parser": "mine", "--reasoning-parser": "qwen3"},
    ),
    (
        "vllm",
        None,
        {"checkpoint": "nobody/Thing-9B", "model": "thing"},
        {
            "--enable-auto-tool-choice": ABSENT,
            "--tool-call-parser": ABSENT,
            "--enable-prefix-caching": ON,
        },
    ),
    (
        "vllm",
        None,
        {"checkpoint": "Qwen/Qwen3-4B-Instruct-2507"},
        {"--tool-call-parser": "hermes", "--reasoning-parser": ABSENT},
    ),
    ("vllm", None, {"extra": ("--reasoning-parser=deepseek_r1",)}, {"--reasoning-parser": ABSENT}),
    (
        "vllm",
        None,
        {"checkpoint": "deepseek-ai/DeepSeek-V4-Flash"},
        {"--tokenizer-mode": "deepseek_v4"},
    ),
    # a template that vLLM's package lacks: no path that does not exist, and no parser for calls
    # that never come
    (
        "vllm",
        None,
        {"checkpoint": "google/gemma-3-27b-it"},
        {"--chat-template": ABSENT, "--tool-call-parser": ABSENT},
    ),
    (
        "vllm",
        None,
        {"checkpoint": "google/gemma-3-27b-it", "chat_template": "/t.jinja"},
        {"--chat-template": "/t.jinja", "--tool-call-parser": "pythonic"},
    ),
    ("sglang", None, {}, {"--tool-call-parser": "qwen25", "--reasoning-parser": "qwen3"}),
    (
        "sglang",
        None,
        {"tool_parser": "none", "reasoning_parser": "none"},
        {"--tool-call-parser": ABSENT, "--reasoning-parser": ABSENT},
    ),
    # the prefix cache
    (
        "vllm",
        None,
        {"prefix_cache": False},
        {"--enable-prefix-caching": ABSENT, "--no-enable-prefix-caching": ON},
    ),
    ("vllm", None, {"chunked_prefill": False}, {"--enable-prefix-caching": ON}),
    ("vllm", None, {"checkpoint": HYBRID}, {"--enable-prefix-caching": ON}),
    (
        "vllm",
        None,
        {"checkpoint": HYBRID, "chunked_prefill": False},
        {"--enable-prefix-caching": ABSENT},
    ),
    (
        "vllm",
        None,
        {"checkpoint": HYBRID, "extra": ("--disable-chunked-mm-input",)},
        {"--enable-prefix-caching": ABSENT},
    ),
    (
        "vllm",
        None,
        {"checkpoint": HYBRID, "extra": ("--no-enable-prefix-caching",)},
        {"--enable-prefix-caching": ABSENT},
    ),
    (
        "sglang",
        OLD_SGLANG,
        {"checkpoint": HYBRID, "draft": Draft("mtp", 2)},
        {"--mamba-scheduler-strategy": "extra_buffer"},
    ),
    ("sglang", OLD_SGLANG, {"checkpoint": HYBRID}, {"--mamba-scheduler-strategy": ABSENT}),
    (
        "sglang",
        OLD_SGLANG,
        {"checkpoint": HYBRID, "draft": Draft("mtp", 2), "prefix_cache": False},
        {"--mamba-scheduler-strategy": ABSENT},
    ),
    ("sglang", OLD_SGLANG, {"draft": Draft("ngram", 2)}, {"--mamba-scheduler-strategy": ABSENT}),
    (
        "sglang",
        OLD_SGLANG | {"--mamba-radix-cache-strategy"},
        {"checkpoint": HYBRID, "draft": Draft("mtp", 2)},
        {"--mamba-scheduler-strategy": ABSENT},
    ),
    (
        "vllm",
        FIGURES,
        {"extra": ("--disable-log-stats",)},
        {"--enable-prompt-tokens-details": ABSENT},
    ),
    ("vllm", frozenset(), {}, {"--enable-prompt-tokens-details": ABSENT}),
    ("vllm", None, {"context_tokens": 0}, {"--max-model-len": ABSENT}),
    ("vllm", None, {"slots": 9, "dp": 2}, {"--max-num-seqs": "5"}),  # of one rank
    (
        "vllm",
        None,
        {"tp": 2, "p2p": "off"},
        {"--disable-custom-all-reduce": ON},
    ),  # it would talk directly too
    (
        "vllm",
        None,
        {"tp": 2, "p2p": "off", "custom_all_reduce": True},
        {"--disable-custom-all-reduce": ABSENT},
    ),
    (
        "sglang",
        None,
        {
            "tp": 2,
            "ep": True,
            "kv": "fp8_e4m3",
            "memory_share": 0.85,
            "graphs": False,
            "prefix_cache": False,
            "batched_tokens": 2048,
            "draft": Draft("mtp", 3),
            "quant": "awq",
            "dtype": "half",
            "tool_parser": "qwen25",
            "reasoning_parser": "qwen3",
        },
        {
            "--model-path": "Qwen/Qwen3-8B",
            "--served-model-name": "qwen3-8b",
            "--host": "127.0.0.1",
            "--port": "9001",
            "--max-running-requests": "4",
            "--context-length": "8192",
            "--tp-size": "2",
            "--ep-size": "2",
            "--kv-cache-dtype": "fp8_e4m3",
            "--mem-fraction-static": "0.85",
            "--chunked-prefill-size": "2048",
            "--speculative-algorithm": "NEXTN",
            "--speculative-num-steps": "3",
            "--speculative-num-draft-tokens": "4",
            "--quantization": "awq",
            "--dtype": "half",
            "--tool-call-parser": "qwen25",
            "--reasoning-parser": "qwen3",
            "--disable-cuda-graph": ON,
            "--disable-radix-cache": ON,
            "--enable-metrics": ON,
        },
    ),
    (
        "sglang",
        None,
        {"tp": 2, "dp": 2, "ep": True, "slots": 8},  # cards and requests of all ranks
        {
            "--tp-size": "4",
            "--dp-size": "2",
            "--ep-size": "4",
            "--max-running-requests": "8",
            "--enable-dp-attention": ON,
        },
    ),
    ("sglang", None, {"chunked_prefill": False}, {"--chunked-prefill-size": "-1"}),
    (
        "sglang",  # each of the two cards' processes has half of it, in GB
        None,
        {"tp": 2, "kv_ram": 64},
        {"--enable-hierarchical-cache": ON, "--hicache-size": "34"},
    ),
    (
        "vllm",  # of both cards together, in GiB
        None,
        {"tp": 2, "kv_ram": 64},
        {"--kv-offloading-size": "64", "--kv-offloading-backend": "native"},
    ),
    ("vllm", None, {"kv_ram": 0}, {"--kv-offloading-size": ABSENT}),
    ("llamacpp", None, {"kv_ram": 16}, {"--cache-ram": "16384"}),
    ("llamacpp", None, {"kv_ram": 0}, {"--cache-ram": "0"}),  # its own are 8 GiB
    ("sglang", None, {"draft": Draft("ngram", 4)}, {"--speculative-num-steps": ABSENT}),
    (
        "sglang",
        None,
        {"draft": Draft("draft", 4, "a/b")},
        {"--speculative-algorithm": "STANDALONE", "--speculative-draft-model-path": "a/b"},
    ),
    (
        "llamacpp",
        None,
        {},  # the context of all slots together
        {
            "--model": "/models/m.gguf",
            "--alias": "gpt-oss-20b",
            "--ctx-size": "40960",
            "--parallel": "5",
            "--port": "9001",
            "--host": "127.0.0.1",
            "--threads": "6",
            "--n-gpu-layers": "999",
            "--jinja": ON,
            "--metrics": ON,
            "--slots": ON,
            "--flash-attn": ABSENT,
            "--batch-size": ABSENT,
            "--ubatch-size": ABSENT,
            "--threads-batch": ABSENT,
        },
    ),
    (
        "llamacpp",
        None,
        {"context_tokens": 0, "threads": 0},
        {"--ctx-size": "0", "--threads": ABSENT},
    ),
    ("llamacpp", None, {"extra": ("-ngl", "20")}, {"--n-gpu-layers": ABSENT, "-ngl": "20"}),
    (
        "llamacpp",
        None,
        {"pp": 2, "card_shares": (32.0, 24.0)},
        {"--split-mode": "layer", "--tensor-split": "32,24"},
    ),
    (
        "llamacpp",
        None,
        {"tp": 2},
        {"--split-mode": "tensor", "--fit": "off", "--flash-attn": "on"},
    ),
    ("llamacpp", None, {"split": "none"}, {"--split-mode": "none"}),
    (
        "llamacpp",
        None,
        {"kv": "q8_0", "batched_tokens": 4096, "prefix_cache": False},
        {
            "--cache-type-k": "q8_0",
            "--cache-type-v": "q8_0",
            "--flash-attn": "on",
            "--ubatch-size": "4096",
            "--batch-size": "4096",
            "--no-cache-prompt": ON,
        },
    ),
    ("llamacpp", None, {"flash_attention": False}, {"--flash-attn": "off"}),
    ("llamacpp", None, {"flash_attention": True}, {"--flash-attn": "on"}),
    (
        "llamacpp",
        None,
        {"batch": 1024, "batched_tokens": 256, "threads_batch": 8},
        {"--batch-size": "1024", "--ubatch-size": "256", "--threads-batch": "8", "--threads": "6"},
    ),
    (
        "llamacpp",
        BOUNDED,
        {"kv_layout": "split"},
        {"--no-kv-unified": ON, "--kv-unified-per-slot": ABSENT},
    ),
    ("llamacpp", BOUNDED, {"kv_layout": "unified"}, {"--kv-unified-per-slot": "8192"}),
    ("llamacpp", None, {"kv_layout": "unified"}, {"--kv-unified": ON}),
    (
        "llamacpp",
        BOUNDED,
        {},
        {"--kv-unified": ABSENT, "--no-kv-unified": ABSENT},
    ),  # its own: one for each slot
    (
        "llamacpp",
        None,
        {"draft": Draft("mtp", 3)},
        {"--spec-type": "draft-mtp", "--spec-draft-n-max": "3"},
    ),
    (
        "llamacpp",
        None,
        {"draft": Draft("draft", 8, "/d.gguf")},
        {"--model-draft": "/d.gguf", "--spec-type": "draft-simple", "--spec-draft-n-max": "8"},
    ),
    (
        "llamacpp",
        None,
        {"draft": Draft("ngram", 8)},
        {
            "--spec-type": "ngram-map-k",
            "--spec-ngram-map-k-size-n": "3",
            "--spec-ngram-map-k-size-m": "8",
        },
    ),
    ("llamacpp", OLD, {}, {"--slots": ABSENT, "--no-webui": ON}),
    ("llamacpp", NEW, {}, {"--no-ui": ON, "--no-webui": ABSENT}),
    (
        "llamacpp",
        None,
        {"weights": None, "checkpoint": HUB_FILE},
        {"--hf-repo": HUB_FILE, "--model": ABSENT},
    ),
]


@pytest.mark.parametrize(("engine", "flags", "fields", "wording"), TOLD)
def test_a_launch_is_told_in_the_words_of_the_engine_and_its_version(
    engine, flags, fields, wording
):
    line = words(engine, flags, **fields)
    for flag, expected in wording.items():
        assert (flag in line) == (expected is not ABSENT), flag
        if isinstance(expected, str):
            assert value(line, flag) == expected


# vLLM


@pytest.mark.parametrize(
    ("draft", "config"),
    [
        (Draft("mtp", 3), {"method": "mtp", "num_speculative_tokens": 3}),
        (
            Draft("ngram", 2),
            {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3},
        ),
        (
            Draft("eagle", 3, "a/b"),
            {"method": "eagle3", "num_speculative_tokens": 3, "model": "a/b"},
        ),
        (
            Draft("draft", 5, "a/b"),
            {"method": "draft_model", "num_speculative_tokens": 5, "model": "a/b"},
        ),
        (
            Draft("dflash", 7, "a/b"),
            {"method": "dflash", "num_speculative_tokens": 7, "model": "a/b"},
        ),
    ],
)
def test_each_way_of_drafting_has_its_configuration(draft, config):
    assert json.loads(value(words("vllm", draft=draft), "--speculative-config")) == config


def test_cards_are_as_nvidia_smi_numbers_them_and_the_hub_is_not_asked_for_a_folder():
    env = Vllm().environment(launch("vllm", gpus=(2, 3), tp=2, p2p="nvlink", env=(("A", "1"),)))
    assert env == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "2,3",
        "NCCL_P2P_LEVEL": "NVL",
        "A": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    assert Vllm(vendor="amd").environment(launch("vllm", gpus=(1,)))["HIP_VISIBLE_DEVICES"] == "1"
    env = LlamaCpp().environment(launch("llamacpp", graphs=False, p2p="off", gpus=(1,)))
    variables = {
        "GGML_CUDA_DISABLE_GRAPHS": "1",
        "NCCL_P2P_DISABLE": "1",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    assert variables.items() <= env.items()
    assert Vllm().environment(launch("vllm", checkpoint="/models/m"))["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in Vllm().environment(launch("vllm"))
    assert "HF_HUB_OFFLINE" not in Vllm().environment(
        launch("vllm", checkpoint="/m", draft=Draft("draft", 2, "a/b"))
    )


def test_pictures_are_read_where_the_checkpoint_has_eyes_that_are_loaded():
    seeing = next(
        checkpoint
        for checkpoint in all_checkpoints()
        if checkpoint.vision and "vllm" in checkpoint.engines
    )
    assert modalities_of(launch("vllm", checkpoint=seeing.hub)) == ("text", "image")
    assert modalities_of(launch("vllm", checkpoint=seeing.hub, text_only=True)) == ("text",)
    assert modalities_of(launch("vllm")) == ("text",)
    assert modalities_of(launch("llamacpp")) == ("text",)


def test_a_vllm_older_than_a_parser_is_started_without_it(tmp_path):
    """An unknown parser ends vLLM before it loads the model."""
    python = tmp_path / "python3"
    program = tmp_path / "vllm"
    program.write_text(f"#!{python}\n")
    program.chmod(0o755)

    def parser_of(version):
        python.write_text(f"#!/bin/sh\n# {version}\necho {version}\n")
        python.chmod(0o755)
        argv = Vllm(cache_dir=tmp_path).argv(
            launch("vllm", binary=str(program), checkpoint=HYBRID)
        )
        if "--tool-call-parser" in argv:
            return value(argv, "--tool-call-parser")
        return None

    assert parser_of("0.16.0") is None
    program.touch()  # installed anew
    assert parser_of("0.28.0rc1") == "qwen3_coder"


def test_an_older_vllm_is_asked_in_its_way_and_an_option_it_does_not_know_is_told(
    tmp_path,
):
    """`--help=all` is of 0.11 and later."""
    always = ("--served-model-name", "--host", "--port", "--max-num-seqs", "--max-model-len")
    flags = "\n".join(f"  {flag} N" for flag in (*always, *(f"--other-{n}" for n in range(20))))
    program = tmp_path / "vllm"
    engine = Vllm(cache_dir=tmp_path / "cache")
    program.write_text(f'#!/bin/sh\n[ "$2" = --help=all ] && exit 2\ncat <<END\n{flags}\nEND\n')
    program.chmod(0o755)
    engine.check(launch("vllm", binary=str(program)))
    with pytest.raises(UserError, match="does not know the flag `--speculative-config`"):
        engine.check(launch("vllm", binary=str(program), draft=Draft("mtp", 2)))


# SGLang


def test_every_flag_a_launch_may_use_is_one_of_sglangs(tmp_path):
    """The stand-in lists those of its server_args.py; a wrong one is told with its version."""
    program = str(tmp_path / "python-with-sglang")
    write_program(program, "sglang")
    engine = Sglang(cache_dir=tmp_path)
    everything = launch(
        "sglang",
        binary=program,
        tp=2,
        dp=2,
        pp=2,
        ep=True,
        quant="awq",
        dtype="half",
        kv="fp8_e4m3",
        memory_share=0.8,
        graphs=False,
        batched_tokens=512,
        prefix_cache=False,
        draft=Draft("eagle", 3, "a/b"),
        p2p="off",
        custom_all_reduce=False,
        trust_remote_code=True,
        reasoning_parser="qwen3",
        tool_parser="qwen",
        chat_template="chatml",
    )
    engine.check(everything)
    assert engine.version() == "sglang 0.5.12"
    assert engine.argv(everything)[:3] == [program, "-m", "sglang.launch_server"]
    with pytest.raises(
        UserError, match=r"sglang 0\.5\.12 does not know the flag `--disable-cudagraph`"
    ) as caught:
        engine.check(launch("sglang", binary=program, extra=("--disable-cudagraph",)))
    assert "from `extra`" in caught.value.message
    assert "did you mean `--disable-cuda-graph`?" in caught.value.hint


# llama-server


def test_a_file_of_the_hub_and_one_at_home_are_named_as_without_a_shell(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    argv = LlamaCpp().argv(
        launch("llamacpp", weights=None, checkpoint="org/name-GGUF:sub-Q4.gguf", binary="/gone")
    )
    assert argv[1:5] == ["--hf-repo", "org/name-GGUF", "--hf-file", "sub-Q4.gguf"]
    argv = LlamaCpp().argv(
        launch("llamacpp", weights=None, checkpoint="~/models/m.gguf", binary="/gone")
    )
    assert value(argv, "--model") == "/home/me/models/m.gguf"


# Ollama


def test_everything_is_told_by_variables():
    assert Ollama().environment(launch("ollama", kv="q8_0", pp=2, gpus=(0, 1))) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "OLLAMA_HOST": "127.0.0.1:9001",
        "OLLAMA_NUM_PARALLEL": "4",
        "OLLAMA_CONTEXT_LENGTH": "8192",
        "OLLAMA_KV_CACHE_TYPE": "q8_0",
        "OLLAMA_FLASH_ATTENTION": "1",
        "OLLAMA_SCHED_SPREAD": "1",
        "OLLAMA_MAX_LOADED_MODELS": "1",
        "OLLAMA_KEEP_ALIVE": "-1",
        "OLLAMA_NOPRUNE": "1",
        "OLLAMA_NO_CLOUD": "1",
    }
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
