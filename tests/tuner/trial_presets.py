"""Configurations of the fake engine, for tests that serve and measure them."""

import os
from contextlib import suppress
from pathlib import Path

from skep.catalog.presets import Preset
from skep.tuner.records import KnobConfig

PLAIN = KnobConfig.of({"slots": 2, "ms": 2.0, "extra": ""})


def preset_of(config):
    """`extra`: words for the fake engine, divided by bars."""
    words = [
        "--token-ms",
        str(config["ms"]),
        *filter(None, str(config.get("extra", "")).split("|")),
    ]
    return Preset(
        name="trial",
        title="a trial",
        engine="fake",
        model="fake-model",
        checkpoint="none",
        served_as="fake-model",
        hardware="cpu",
        source="this test",
        slots=int(config["slots"]),
        replicas=int(config.get("replicas", 1)),
        extra=tuple(words),
    )


def with_words(*words):
    return PLAIN.turned({"extra": "|".join(words)})


def pids_of(text):
    """Processes that have this in their environment or command line, this one excepted."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            process_text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            if text.encode() in process_text and int(entry.name) != os.getpid():
                pids.append(int(entry.name))
    return pids
