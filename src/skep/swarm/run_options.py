"""What a run was asked for: kept with it, so that a resumed one is carried out the same way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from skep.swarm.records import given_fields


@dataclass(frozen=True, slots=True)
class SwarmRunOptions:
    agents: int | None = None  # at once, at most; None: as many as the endpoint can use
    tries: int = 4  # of one task, before it is set aside
    timeout_s: float = 600.0  # of one request
    deadline_s: float = 600.0  # an endpoint that does not answer for so long is given up, the journal intact
    stragglers: bool = True  # one that takes far longer than the others is asked a second time, elsewhere
    output: str | None = None  # absolute path of the results file
    key_env: str | None = None  # which variable holds the endpoint's key; never the key itself
    priority: str | None = None  # of skep's gateway, for tasks that name none
    max_tokens: int | None = None  # for tasks that name none
    price_kwh: float | None = None
    ask: Mapping[str, Any] | None = None  # of an `ask` run: goal, plan, root


def run_options_json(order: SwarmRunOptions) -> dict[str, Any]:
    """Return the options as JSON, without those that have their default."""
    return given_fields(order)


def run_options_from_json(document: Mapping[str, Any]) -> SwarmRunOptions:
    """Read what `run_options_json` wrote. Fields of a later version are ignored."""
    return msgspec.convert(document, SwarmRunOptions)
