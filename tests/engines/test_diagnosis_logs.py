"""Excerpts of real logs and what is made of them. The first line of each file says what to expect."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from skep.catalog.options import Draft, EngineOptions
from skep.engines.base import Launch
from skep.engines.diagnosis import diagnose, find_rule
from skep.engines.diagnosis_rule import make_diagnosis, plain

FOLDER = Path(__file__).parent / "logs"
LOGS = [log for log in sorted(FOLDER.glob("*.log")) if log.stem != "healthy"]


def expected(log: Path) -> tuple[dict[str, str], list[str]]:
    head, *lines = log.read_text().splitlines()
    return dict(word.split("=", 1) for word in shlex.split(head.removeprefix("#!"))), lines


def launch_of(said: dict[str, str]) -> Launch:
    draft = said.get("draft")
    options = EngineOptions(
        tp=int(said.get("tp", 1)),
        memory_share=float(said["share"]) if "share" in said else None,
        kv=said.get("kv"),
        draft=None if draft is None else Draft(draft.split(":")[0], int(draft.split(":")[1])),
    )
    slots, context = int(said.get("slots", 8)), int(said.get("context", 32768))
    return Launch(
        "r0", said["engine"], "a-model", None, slots, context, 4, checkpoint="someone/a-model", options=options
    )


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_a_real_log_is_explained(log):
    said, lines = expected(log)
    launch = launch_of(said)
    found = find_rule(launch, int(said["code"]), lines)
    assert found is not None
    rule, case = found
    assert rule.id == said["rule"]
    told = make_diagnosis(rule, case)
    assert told.changed == said.get("changed")
    assert told.evidence in {plain(line).shown for line in lines}
    assert "{" not in told.cause
    assert "?" not in told.cause


def test_an_engine_that_ended_with_the_loss_of_its_core_is_put_down_to_the_kernel_where_that_counted():
    said, lines = expected(FOLDER / "vllm_core_vanished.log")
    assert "killed, or crashed outside Python" in diagnose(launch_of(said), 0, lines).cause
    assert "killed by the kernel" in diagnose(launch_of(said), 0, lines, oom_kills=1).cause


def test_a_hub_error_shows_what_was_raised_not_the_line_of_code():
    said, lines = expected(FOLDER / "vllm_offline_hub.log")
    evidence = diagnose(launch_of(said), 1, lines).evidence
    assert evidence is not None
    assert evidence.startswith("huggingface_hub.errors.LocalEntryNotFoundError: Cannot find")


HEALTHY = (FOLDER / "healthy.log").read_text()


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp", "embedded", "ollama"])
@pytest.mark.parametrize("code", [0, 1, None])
def test_a_healthy_log_gives_no_cause(engine, code):
    assert find_rule(launch_of({"engine": engine}), code, HEALTHY.splitlines()) is None


def test_each_line_of_a_healthy_log_alone_gives_no_cause_either():
    for engine in ("vllm", "sglang", "llamacpp", "ollama"):
        for line in HEALTHY.splitlines():
            assert find_rule(launch_of({"engine": engine}), 1, [line]) is None, line


def test_an_unexplained_end_does_not_show_a_warning_as_its_error():
    told = diagnose(launch_of({"engine": "vllm"}), 1, HEALTHY.splitlines()[:5])
    assert "ulimit" not in told.cause
