"""The quality guard where the tuned model calls tools: which tasks it asks, and when it goes back
to drills.
"""

import asyncio
from dataclasses import dataclass

import pytest

from skep.catalog.presets import EngineOptions, Preset
from skep.host.facts import NvidiaReport, read_host
from skep.testing.process import FakeEngine
from skep.tuner.quality_check import TOOL_ITEMS, GuardPlan, calls_tools, open_guard
from skep.tuner.records import KnobConfig
from tool_dialogues import SEED, write_dialogues

HOST = read_host(NvidiaReport())
PLAIN = KnobConfig.of({"kv": "f16"})
NARROW = KnobConfig.of({"kv": "q4_0"})
PLAN = GuardPlan(concurrency=4, items=24, delta=0.1, seed=SEED, with_tools=True)


@dataclass(frozen=True)
class Served:
    url: str
    model: str = "fake-model"


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    path = tmp_path_factory.mktemp("dialogues") / "solved.jsonl"
    return write_dialogues(path, TOOL_ITEMS, sizes=("2k", "32k"))


def preset(engine, model, **options):
    return Preset(
        name="p",
        title="p",
        engine=engine,
        model=model,
        checkpoint=model,
        hardware="rtx-3090",
        source="here",
        slots=4,
        options=EngineOptions(**options),
    )


@pytest.mark.parametrize(
    ("tuned", "expected"),
    [
        (preset("vllm", "qwen3-8b"), True),
        (preset("embedded", "smollm2-135m"), False),
        (preset("vllm", "gemma-3-12b"), False),
        (preset("vllm", "gemma-3-12b", tool_parser="pythonic"), True),
        (preset("vllm", "qwen3-8b", tool_parser="none"), False),
    ],
)
def test_models_that_call_tools_are_those_whose_calls_can_be_relied_on(tuned, expected):
    assert calls_tools(tuned) is expected


def sheets(guard, dialogues, **how):
    async def ask(url):
        return [await guard.answers(Served(url), config) for config in (PLAIN, NARROW)]

    with FakeEngine(slots=4, token_ms=0.1, ctx=9_000, dialogues=dialogues, **how) as engine:
        return asyncio.run(ask(engine.url))


def banks(store):
    return [run.config["bank"] for run in reversed(store.runs())]


def test_tasks_with_tools_are_asked_and_compared(solved, store, tmp_path):
    guard = open_guard(PLAN, store, HOST, tmp_path)
    plain, narrow = sheets(guard, solved)
    assert banks(store) == ["tools", "tools"]
    assert plain.passed == len(plain.outcomes) == TOOL_ITEMS
    assert guard.compare(plain, narrow).ok


def test_an_engine_without_a_parser_is_asked_drills(solved, store, tmp_path):
    """Without a word of a model's calls nothing could be compared."""
    guard = open_guard(PLAN, store, HOST, tmp_path)
    plain, narrow = sheets(guard, solved, tool_calls="refused")
    assert banks(store) == ["tools", "drills", "drills"]
    assert len(plain.outcomes) == len(narrow.outcomes) == PLAN.items


def test_a_model_that_passes_next_to_nothing_is_asked_drills(store, tmp_path):
    path = write_dialogues(
        tmp_path / "unsolved.jsonl", TOOL_ITEMS, lambda _task: [{"text": "No."}]
    )
    guard = open_guard(PLAN, store, HOST, tmp_path)
    sheets(guard, path)
    assert banks(store) == ["tools", "drills", "drills"]
