"""What a run says of where and with what it ran, in a few words: the machine, the engine, the layout."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from skep.places import LOOPBACK
from skep.records import Run

# What a hive with `--simulate` says of itself.
_SIMULATED = re.compile(
    r"simulated: .+?, (?:KV [^,]+, )?(?:[^,]+, )?"
    r"(?P<layout>(?:\d+ x )?TP=.+?) on (?P<rig>.+), as (?P<engine>\w+)"
)
_LONGEST = 400  # letters of such a sentence
_MAKERS = re.compile(r"^(NVIDIA |AMD |Intel\(R\) )(GeForce |Radeon )?")


def machine_of(run: Run, *, public: bool = False) -> str:
    """The cards, or the CPU where there is none. Of a far endpoint only its address is known."""
    if found := _simulated(run):
        return found["rig"]
    if run.simulated:
        return "no machine: simulated"
    if not is_near(run.url):
        return "another machine" if public else _hostname(run.url)
    return host_words(run.host)


def _hostname(url: str) -> str:
    try:
        return str(urlsplit(url).hostname)
    except ValueError:
        return "unknown machine"


def is_near(url: str) -> bool:
    """Whether what answered ran on the client's own machine, whose facts the run has."""
    try:
        address = urlsplit(url).hostname
    except ValueError:
        return False
    return address is None or address in LOOPBACK


def host_words(host: Mapping[str, Any]) -> str:
    cards = host.get("gpus")
    if isinstance(cards, list) and cards:
        names = Counter(str(card.get("name", "?")) for card in cards if isinstance(card, dict))
        return " + ".join(f"{many}x {_MAKERS.sub('', name)}" for name, many in names.items())
    cpu, cores = host.get("cpu_model") or host.get("machine"), host.get("cpu_cores")
    return f"{cpu}, {cores} cores" if cpu and cores else str(cpu or "unknown machine")


def engine_of(run: Run) -> str:
    """Its name and version, as the endpoint told."""
    if found := _simulated(run):
        return f"{found['engine']} (simulated)"
    told = str(
        run.engine.get("engine") or run.engine.get("server") or run.engine.get("measured_by") or "unknown engine"
    )
    version = run.engine.get("version") or run.engine.get("build")
    return told if not version or str(version) in told or "unknown" in str(version) else f"{told} {version}"


def layout_of(run: Run) -> str:
    """Replicas and slots, where the endpoint told; of a simulated rig how its cards are divided."""
    if found := _simulated(run):
        return found["layout"]
    replicas, slots = run.engine.get("replicas"), run.engine.get("slots")
    if not isinstance(slots, int):
        return ""
    return f"{replicas} x {slots} slots" if isinstance(replicas, int) and replicas > 1 else f"{slots} slots"


def _simulated(run: Run) -> re.Match[str] | None:
    told = run.engine.get("engine")
    return _SIMULATED.match(told[:_LONGEST]) if run.simulated and isinstance(told, str) else None
