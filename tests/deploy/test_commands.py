"""The commands that start a plan, as the engines' adapters have them."""

import shlex

import pytest
from msgspec.structs import replace

from skep.catalog.models import geometry
from skep.catalog.presets import Draft
from skep.config.rigs import parse_rig
from skep.deploy.commands import command_lines, gateway_line, launches_of
from skep.engines.base import engine_named
from skep.planner.setup import Layout, Setup, Speculation, find_kv, find_quant

RIG = parse_rig("4x rtx-3090")


def setup(engine="vllm", layout=None, **changes):
    quant = "q4_k_m" if engine == "llamacpp" else "awq"
    setup = Setup(
        geometry("qwen3.6-35b-a3b"),
        find_quant(quant),
        find_kv("bf16"),
        engine,
        layout or Layout(),
        slots=4,
        context=8192,
        utilization=0.92,
    )
    return replace(setup, **changes)


def words(line):
    return shlex.split(line)


def value(line, flag):
    arguments = words(line)
    return arguments[arguments.index(flag) + 1]


def values(line, expected):
    return {flag: value(line, flag) for flag in expected}


def test_each_replica_has_its_own_cards_and_port_and_the_gateway_fronts_them_all():
    layout = Layout(tp=2, replicas=2)
    lines = command_lines(setup(layout=layout), RIG)
    assert [words(line)[0] for line in lines] == [
        "CUDA_VISIBLE_DEVICES=0,1",
        "CUDA_VISIBLE_DEVICES=2,3",
    ]
    ports = [value(line, "--port") for line in lines]
    assert len(set(ports)) == 2
    front = gateway_line(setup(layout=layout), RIG)
    assert front.startswith("skep gateway ")
    assert all(f"--upstream http://127.0.0.1:{port}" in front for port in ports)
    assert front.endswith("--slots 4")
    assert gateway_line(setup(), RIG) is None


def test_cards_that_were_rearranged_keep_their_numbers():
    (line,) = command_lines(setup(layout=Layout(tp=2)), RIG, order=(3, 1, 0, 2))
    assert words(line)[0] == "CUDA_VISIBLE_DEVICES=3,1"


DRAFTED = {"spec": Speculation("mtp", 3), "layout": Layout(tp=2, ep=2)}
SHARED = {
    "tp": 2,
    "ep": True,
    "memory_share": 0.92,
    "draft": Draft("mtp", 3),
    "custom_all_reduce": False,
}


@pytest.mark.parametrize(
    ("chosen", "rig", "begins", "options"),
    [
        (
            setup(**DRAFTED, kv=find_kv("fp8_e5m2"), graphs=False, batched_tokens=4096),
            RIG,
            "vllm serve",
            {**SHARED, "kv": "fp8_e5m2", "graphs": False, "batched_tokens": 4096},
        ),
        (
            setup("sglang", **DRAFTED, kv=find_kv("fp8")),
            RIG,
            "python -m sglang.launch_server",
            {**SHARED, "kv": "fp8_e4m3"},
        ),
        (
            setup("llamacpp", Layout(pp=2), kv=find_kv("q8_0"), utilization=None),
            parse_rig("rtx-5090 + rtx-3090"),
            "llama-server --model path/to/qwen3.6-35b-a3b-q4_k_m.gguf",
            {"kv": "q8_0", "pp": 2, "card_shares": (32, 24)},
        ),
        # linked cards keep their own all-reduce
        (
            setup(layout=Layout(tp=2)),
            parse_rig("2x h100-sxm"),
            "vllm serve",
            {"tp": 2, "memory_share": 0.92},
        ),
    ],
)
def test_an_engine_is_told_everything_the_plan_counted_on(chosen, rig, begins, options):
    """And what is printed is what would be started: the launch passes its adapter's own checks."""
    (launch,), (line,) = launches_of(chosen, rig), command_lines(chosen, rig)
    assert (launch.options.given, launch.slots, launch.context_tokens) == (options, 4, 8192)
    assert (launch.gpus, launch.port) == ((0, 1), 8001)
    assert line.partition(" ")[2].startswith(begins)
    adapter = engine_named(launch.engine)
    assert list(adapter.refusals(launch)) == []
    assert words(line)[-len(adapter.arguments(launch)) :] == adapter.arguments(launch)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_a_checkpoint_with_a_space_survives_the_shell(engine):
    (line,) = command_lines(setup(engine), parse_rig("rtx-5090"), checkpoint="/models/my model")
    assert "/models/my model" in words(line)
    assert not words(line)[0].startswith("CUDA_VISIBLE_DEVICES")


def test_machines_in_a_network_get_no_line():
    layout = Layout(tp=2)
    assert command_lines(setup("vllm", layout, utilization=None), parse_rig("2x dgx-spark")) == ()


def test_cards_of_other_makers_have_their_own_variable():
    (line,) = command_lines(
        setup("llamacpp", Layout(pp=2), utilization=None), parse_rig("2x rx-7900-xtx")
    )
    assert words(line)[0] == "HIP_VISIBLE_DEVICES=0,1"
