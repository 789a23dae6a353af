"""vLLM: a launch as its command line and variables, and what is refused before a start."""

import json
import stat

import pytest

from skep.catalog.options import Draft, EngineOptions
from skep.engines.base import Launch
from skep.engines.vllm import Vllm
from skep.errors import UserError


def launch(slots=4, **fields):
    options = {name: fields.pop(name) for name in tuple(fields) if name in EngineOptions.__slots__}
    fields = {"checkpoint": "Qwen/Qwen3-8B", "context_tokens": 8192, "port": 9001, **fields}
    return Launch("m-0", "vllm", "qwen3-8b", None, slots=slots, threads=0, options=EngineOptions(**options), **fields)


def flags(**fields):
    return Vllm().arguments(launch(**fields))


def value(words, flag):
    return words[words.index(flag) + 1]


def test_a_plain_launch_says_model_name_place_and_sizes():
    assert flags() == [
        "Qwen/Qwen3-8B", "--served-model-name", "qwen3-8b", "--host", "127.0.0.1", "--port", "9001",
        "--max-num-seqs", "4", "--max-model-len", "8192",
    ]  # fmt: skip
    assert "--max-model-len" not in flags(context_tokens=0)


def test_a_recipe_of_two_3090s_is_told_in_full():
    words = flags(
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
    assert json.loads(value(flags(draft=draft), "--speculative-config")) == config


def test_sequences_are_counted_for_one_rank_of_data_parallelism():
    assert value(flags(slots=9, dp=2), "--max-num-seqs") == "5"


def test_cards_are_those_that_nvidia_smi_numbers_so():
    env = Vllm().environment(launch(gpus=(2, 3), tp=2, p2p="nvlink", env=(("A", "1"),)))
    assert env == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "2,3", "NCCL_P2P_LEVEL": "NVL", "A": "1",
        "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    }  # fmt: skip
    assert Vllm(vendor="amd").environment(launch(gpus=(1,)))["HIP_VISIBLE_DEVICES"] == "1"


def test_cards_that_may_not_talk_directly_do_not_do_so_by_the_custom_all_reduce_either():
    asked = launch(tp=2, p2p="off")
    assert Vllm().environment(asked)["NCCL_P2P_DISABLE"] == "1"
    assert "--disable-custom-all-reduce" in Vllm().arguments(asked)
    assert "--disable-custom-all-reduce" not in flags(tp=2, p2p="off", custom_all_reduce=True)


def test_the_hub_is_not_asked_for_what_lies_in_a_folder():
    assert Vllm().environment(launch(checkpoint="/models/m"))["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in Vllm().environment(launch())
    assert "HF_HUB_OFFLINE" not in Vllm().environment(launch(checkpoint="/m", draft=Draft("draft", 2, "a/b")))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
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
)
def test_what_cannot_be_is_refused_in_one_line_with_what_to_do(fields, said):
    with pytest.raises(UserError, match="vllm: ") as caught:
        Vllm().check(launch(**fields))
    assert said in caught.value.message
    assert caught.value.hint
    assert "\n" not in caught.value.message


def test_a_folder_without_a_config_is_no_checkpoint(tmp_path):
    with pytest.raises(UserError, match=r"has no config\.json"):
        Vllm().check(launch(checkpoint=str(tmp_path)))


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
    engine.check(launch(binary=program))
    with pytest.raises(UserError, match="does not know the flag `--enable-prefix-cachin-x` ") as caught:
        engine.check(launch(binary=program, extra=("--enable-prefix-cachin-x",)))
    assert "from `extra`" in caught.value.message
    assert "did you mean `--enable-prefix-caching`?" in caught.value.hint
    with pytest.raises(UserError, match="does not know the flag `--speculative-config`"):
        engine.check(launch(binary=program, draft=Draft("mtp", 2)))


def test_figures_of_a_request_are_asked_for_where_the_version_has_them(program, tmp_path):
    engine = Vllm(cache_dir=tmp_path / "cache")
    engine.check(launch(binary=program))
    words = engine.argv(launch(binary=program))
    assert words[:3] == [program, "serve", "Qwen/Qwen3-8B"]
    assert "--enable-prompt-tokens-details" in words
    assert "--enable-per-request-metrics" not in words
    assert "--enable-prompt-tokens-details" not in engine.argv(launch(binary=program, extra=("--disable-log-stats",)))
