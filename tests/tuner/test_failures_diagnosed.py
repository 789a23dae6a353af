"""What the search learns of an engine that died."""

from dataclasses import replace

import pytest

from skep.catalog.options import Draft, EngineOptions
from skep.engines.base import Diagnosis, Launch
from skep.engines.diagnosis import RULES
from skep.tuner.failures import failure_of
from skep.tuner.ports import drop_unusable_remedies
from skep.tuner.records import ConfigFailure, KnobConfig

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


def test_speculation_that_is_given_up_is_a_depth_of_none():
    change = replace(LAUNCH, options=replace(LAUNCH.options, draft=None))
    found = failure_of(Diagnosis("no draft layers", change=change), LAUNCH, under_load=False)
    assert found.mended == (("mtp", 0),)


@pytest.mark.parametrize(("under_load", "kind"), [(False, "no-start"), (True, "crash-under-load")])
def test_another_death_is_told_by_when_it_came(under_load, kind):
    found = failure_of(Diagnosis("an illegal memory access"), LAUNCH, under_load=under_load)
    assert found.kind == kind
    assert ("under load" in found.cause) == under_load


def test_every_rule_that_is_about_running_out_is_told_as_such():
    causes = [rule.cause for rule in RULES if "out of GPU memory" in rule.cause or "no memory" in rule.cause]
    assert len(causes) > 10
    assert {failure_of(Diagnosis(cause), LAUNCH, under_load=False).kind for cause in causes} == {"out-of-memory"}


def test_only_knobs_of_the_configuration_are_a_remedy():
    failure = ConfigFailure("no-start", "x", mended=(("slots", 4), ("kv", "fp8"), ("p2p", "off")))
    config = KnobConfig.of({"slots": 8, "kv": "fp8"})
    assert drop_unusable_remedies(failure, config).mended == (("slots", 4),)
