"""Dead ends: which are about memory, and what the diagnosis turns."""

import pytest
from msgspec.structs import replace

from skep.catalog.presets import Draft, EngineOptions
from skep.engines.base import Diagnosis, Launch
from skep.engines.diagnosis import RULES
from skep.tuner.failures import apply_remedy, failure_of, is_of_memory
from skep.tuner.records import ConfigFailure, Knob, KnobConfig

KNOBS = (
    Knob("memory_share", "", (0.8, 0.85, 0.9, 0.95), ordered=True),
    Knob("slots", "", (2, 4, 8, 16), ordered=True),
    Knob("kv", "", ("auto", "fp8", "fp8_e5m2"), alters_answers=True),
    Knob("graphs", "", (False, True)),
)
MIDDLE = KnobConfig.of({"memory_share": 0.9, "slots": 8, "kv": "auto", "graphs": True})


@pytest.mark.parametrize(
    ("kind", "cause", "evidence", "remedy", "memory"),
    [
        ("out-of-memory", "out of GPU memory while CUDA graphs were captured", "CUDA out of memory.", None, True),
        ("no-start", "no room in the KV cache for one request of 32768 tokens", None, "raise memory_share", True),
        ("crash-under-load", "it died", "torch.OutOfMemoryError: CUDA out of memory.", None, True),
        ("crash-under-load", "it died", "CUDA error: an illegal memory access was encountered", None, False),
        ("refused", "not enough memory", None, None, False),
    ],
)
def test_a_failure_is_about_memory_where_its_kind_or_its_log_says_so(kind, cause, evidence, remedy, memory):
    assert is_of_memory(ConfigFailure(kind, cause, evidence, remedy)) is memory


@pytest.mark.parametrize(
    ("mended", "turned"),
    [
        ((("slots", 6),), {"slots": 4}),  # the rung beyond the advice
        ((("memory_share", 0.83), ("p2p", "off")), {"memory_share": 0.8}),
        ((("kv", "auto"), ("graphs", False)), {"graphs": False}),
        ((("slots", 1),), None),
        ((), None),
    ],
)
def test_the_remedy_is_what_the_diagnosis_says_on_the_rungs_of_the_knobs(mended, turned):
    failure = ConfigFailure("out-of-memory", "oom", mended=mended)
    assert apply_remedy(MIDDLE, failure, KNOBS) == (turned and MIDDLE.turned(turned))


LAUNCH = Launch(
    "r", "vllm", "m", None, 8, 4096, 4, options=EngineOptions(memory_share=0.92, kv="fp8", draft=Draft("mtp", 3))
)


def test_the_remedy_is_told_as_knobs():
    options = replace(LAUNCH.options, memory_share=0.87, draft=Draft("mtp", 2))
    change = replace(LAUNCH, slots=4, options=options)
    found = failure_of(Diagnosis("out of GPU memory", "torch...", "lower it", change=change), LAUNCH, under_load=False)
    assert found.kind == "out-of-memory"
    assert (found.evidence, found.remedy) == ("torch...", "lower it")
    assert dict(found.mended) == {"slots": 4, "mtp": 2, "memory_share": 0.87}
    undrafted = Diagnosis("no draft layers", change=replace(LAUNCH, options=replace(LAUNCH.options, draft=None)))
    assert failure_of(undrafted, LAUNCH, under_load=False).mended == (("mtp", 0),)


@pytest.mark.parametrize(("under_load", "kind"), [(False, "no-start"), (True, "crash-under-load")])
def test_another_death_is_told_by_when_it_came(under_load, kind):
    found = failure_of(Diagnosis("an illegal memory access"), LAUNCH, under_load=under_load)
    assert found.kind == kind
    assert ("under load" in found.cause) == under_load


def test_every_rule_that_is_about_running_out_is_told_as_such():
    causes = [rule.cause for rule in RULES if "out of GPU memory" in rule.cause or "no memory" in rule.cause]
    assert len(causes) > 10
    assert {failure_of(Diagnosis(cause), LAUNCH, under_load=False).kind for cause in causes} == {"out-of-memory"}
