"""The commands that start a plan, as the engines' adapters have them."""

import json
import shlex

import pytest
from msgspec.structs import replace

from skep.catalog.models import geometry
from skep.config.rigs import parse_rig
from skep.deploy.commands import command_lines, gateway_line, launches_of
from skep.engines.base import engine_named
from skep.planner.quants import find_kv, find_quant
from skep.planner.setup import Layout, Setup, Speculation

RIG = parse_rig("4x rtx-3090")


def setup(engine="vllm", layout=None, **changes):
    quant = "q4_k_m" if engine == "llamacpp" else "awq"
    made = Setup(
        geometry("qwen3.6-35b-a3b"), find_quant(quant), find_kv("bf16"), engine, layout or Layout(), slots=4,
        context=8192, utilization=0.92,
    )  # fmt: skip
    return replace(made, **changes)


def words(line):
    return shlex.split(line)


def value(line, flag):
    found = words(line)
    return found[found.index(flag) + 1]


def values(line, expected):
    return {flag: value(line, flag) for flag in expected}


def test_each_replica_has_its_own_cards_and_port_and_the_gateway_fronts_them_all():
    layout = Layout(tp=2, replicas=2)
    lines = command_lines(setup(layout=layout), RIG)
    assert [words(line)[0] for line in lines] == ["CUDA_VISIBLE_DEVICES=0,1", "CUDA_VISIBLE_DEVICES=2,3"]
    ports = [value(line, "--port") for line in lines]
    assert len(set(ports)) == 2
    front = gateway_line(setup(layout=layout))
    assert front.startswith("skep gateway ")
    assert all(f"--upstream http://127.0.0.1:{port}" in front for port in ports)
    assert front.endswith("--slots 4")
    assert gateway_line(setup()) is None


def test_cards_that_were_rearranged_keep_their_numbers():
    (line,) = command_lines(setup(layout=Layout(tp=2)), RIG, order=(3, 1, 0, 2))
    assert words(line)[0] == "CUDA_VISIBLE_DEVICES=3,1"


def test_vllm_is_told_everything_the_plan_counted_on():
    spec = Speculation("mtp", 3)
    chosen = setup(layout=Layout(tp=2, ep=2), spec=spec, kv=find_kv("fp8_e5m2"), graphs=False, batched_tokens=4096)
    (line,) = command_lines(chosen, RIG)
    assert words(line)[1:3] == ["vllm", "serve"]
    expected = {"--tensor-parallel-size": "2", "--max-model-len": "8192", "--max-num-seqs": "4",
                "--gpu-memory-utilization": "0.92", "--kv-cache-dtype": "fp8_e5m2",
                "--max-num-batched-tokens": "4096"}  # fmt: skip
    assert values(line, expected) == expected
    assert {"--enable-expert-parallel", "--enforce-eager", "--disable-custom-all-reduce"} <= set(words(line))
    assert json.loads(value(line, "--speculative-config")) == {"method": "mtp", "num_speculative_tokens": 3}


def test_replicas_that_share_their_experts_are_one_engine():
    layout = Layout(tp=2, ep=4, replicas=2)
    (line,) = command_lines(setup(layout=layout), RIG)
    assert words(line)[0] == "CUDA_VISIBLE_DEVICES=0,1,2,3"
    assert (value(line, "--data-parallel-size"), value(line, "--max-num-seqs")) == ("2", "4")
    (line,) = command_lines(setup("sglang", layout), RIG)
    shared = {"--tp-size": "4", "--dp-size": "2", "--max-running-requests": "8"}
    assert values(line, shared) == shared, "slots are of all its parts"
    assert gateway_line(setup(layout=layout)) is None


def test_sglang_has_its_own_words():
    chosen = setup("sglang", Layout(tp=2, ep=2), spec=Speculation("mtp", 3), kv=find_kv("fp8"))
    (line,) = command_lines(chosen, RIG)
    assert words(line)[1:4] == ["python", "-m", "sglang.launch_server"]
    expected = {"--tp-size": "2", "--ep-size": "2", "--context-length": "8192", "--max-running-requests": "4",
                "--mem-fraction-static": "0.92", "--kv-cache-dtype": "fp8_e4m3", "--speculative-algorithm": "NEXTN",
                "--speculative-num-steps": "3", "--speculative-num-draft-tokens": "4"}  # fmt: skip
    assert values(line, expected) == expected


def test_llama_server_gets_the_context_of_all_slots_together():
    chosen = setup("llamacpp", Layout(pp=2), kv=find_kv("q8_0"), utilization=None)
    (line,) = command_lines(chosen, parse_rig("rtx-5090 + rtx-3090"))
    expected = {"--ctx-size": "32768", "--parallel": "4", "--split-mode": "layer", "--cache-type-k": "q8_0",
                "--tensor-split": "32,24"}  # fmt: skip
    assert values(line, expected) == expected
    assert value(line, "--model").endswith(".gguf")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_a_checkpoint_with_a_space_survives_the_shell(engine):
    (line,) = command_lines(setup(engine), parse_rig("rtx-5090"), checkpoint="/models/my model")
    assert "/models/my model" in words(line)
    assert not words(line)[0].startswith("CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_machines_in_a_network_get_a_line_each_and_are_reached_by_their_names(engine):
    rig = parse_rig("2x dgx-spark")
    layout = Layout(pp=2) if engine == "llamacpp" else Layout(tp=2)
    first, second = command_lines(setup(engine, layout, utilization=None), rig)
    assert (first.partition(" # ")[2], second.partition(" # ")[2]) == ("on machine-1", "on machine-2")
    assert value(first, "--host") == "machine-1"
    assert "127.0.0.1" not in first + second
    if engine == "llamacpp":
        assert value(first, "--rpc") == "machine-2:50052"
        assert words(second)[:3] == ["rpc-server", "--host", "machine-2"]
    else:
        assert (value(first, "--node-rank"), value(second, "--node-rank")) == ("0", "1")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_what_is_printed_is_what_would_be_started(engine):
    """A plan's launches pass their adapter's own checks of options, and a line has the adapter's arguments."""
    chosen = setup(engine, Layout(pp=2) if engine == "llamacpp" else Layout(tp=2), spec=Speculation("eagle", 3))
    (launch,) = launches_of(chosen, RIG)
    adapter = engine_named(engine)
    assert list(adapter.refusals(launch)) == []
    (line,) = command_lines(chosen, RIG)
    assert words(line)[-len(adapter.arguments(launch)) :] == adapter.arguments(launch)
    assert (launch.gpus, launch.slots, launch.port) == ((0, 1), 4, 8001)


def test_cards_of_other_makers_have_their_own_variable_and_linked_ones_their_own_all_reduce():
    (line,) = command_lines(setup(layout=Layout(tp=2)), parse_rig("2x h100-sxm"))
    assert "--disable-custom-all-reduce" not in words(line)
    (line,) = command_lines(setup("llamacpp", Layout(pp=2), utilization=None), parse_rig("2x rx-7900-xtx"))
    assert words(line)[0] == "HIP_VISIBLE_DEVICES=0,1"
