"""Models that have to be loaded before anybody answers: what the supervisor says of each, whether
it has heard that the model is wanted, and why it could not be loaded. Knows no requests and no
clock."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from math import inf

import msgspec

from skep.config.gateway_messages import UnloadedModel

NOT_COMING = ("unloaded", "unloading")  # unless somebody says that it is wanted
GIVEN_UP = "failed"  # it is not tried again before the user says so


class ModelLoad(msgspec.Struct):
    """One model, from the first word about it until it serves."""

    state: str | None  # in the supervisor's words; None: it says nothing of this model
    requested: bool = False  # the supervisor heard that it is wanted, and has not answered
    failure: str | None = None  # why it could not be loaded; None: it has not failed
    retry_at: float = -inf  # after a failure: until then it is not tried again

    def follow(self, earlier: ModelLoad) -> None:
        """Take over what still holds of the model's earlier state."""
        self.requested = earlier.requested and self.state in NOT_COMING
        if self.state in NOT_COMING or self.state in (GIVEN_UP, None):
            self.failure = earlier.failure
            self.retry_at = earlier.retry_at


class UnloadedModels:
    def __init__(self) -> None:
        self._loads: dict[str, ModelLoad] = {}
        # By model; empty while all are loaded: all that a request then pays for.
        self.states: dict[str, str] = {}

    def become(
        self,
        table: Mapping[str, UnloadedModel],
        serving: Iterable[str],
        models: Iterable[str] = (),
    ) -> list[str]:
        """Set what the supervisor says, and return the models that have just been loaded.

        Those on their way have not failed. One of the `models` that failed, and of which nothing
        else is said, has been given up.
        """
        earlier = self._loads
        served = set(serving)
        self._loads = {
            **_loads_of(table, earlier, served),
            **_failed_loads(earlier, served | table.keys(), set(models)),
        }
        self.states = {
            model: load.state for model, load in self._loads.items() if load.state is not None
        }
        return [
            model
            for model, load in earlier.items()
            if load.state == "loading" and model in served and model not in table
        ]

    def should_request_load(self, model: str) -> bool:
        """Return whether the supervisor has to hear that it is wanted; once, until it moves."""
        load = self._loads.get(model)
        if load is None or load.state not in NOT_COMING or load.requested:
            return False
        load.requested = True
        return True

    def failed(self, model: str, why: str, until: float) -> None:
        """Note that a model could not be loaded; it is not tried again before `until`."""
        load = self._loads.setdefault(model, ModelLoad(None))
        load.failure = why
        load.retry_at = until
        load.requested = False

    def failure(self, model: str, now: float) -> tuple[str, float | None] | None:
        """Return why it could not be loaded, and after how long to come back; None: nobody tries
        by himself.
        """
        load = self._loads.get(model)
        if load is None or load.failure is None:
            return None
        if now < load.retry_at:
            return load.failure, load.retry_at - now
        if load.state == GIVEN_UP:
            return load.failure, None
        return None

    def words(self, model: str) -> str:
        """Return what those who wait are told, in one line: a model may be called anything."""
        activities = {"loading": "loading", "waiting": "waiting for room to load"}
        activity = activities.get(self.states.get(model, ""), "waiting for")
        return f"{activity} {' '.join(model.split())}"


def _loads_of(
    table: Mapping[str, UnloadedModel], earlier: Mapping[str, ModelLoad], served: Container[str]
) -> dict[str, ModelLoad]:
    """Return the models that the supervisor names."""
    loads: dict[str, ModelLoad] = {}
    for model, unloaded in table.items():
        load = loads[model] = ModelLoad(unloaded.state)
        if model in earlier:
            load.follow(earlier[model])
        if model in served:
            load.failure = None
        if load.state == GIVEN_UP and load.failure is None:
            load.failure = unloaded.why or "it did not start"
            load.retry_at = -inf
    return loads


def _failed_loads(
    earlier: Mapping[str, ModelLoad], settled: Container[str], models: Container[str]
) -> dict[str, ModelLoad]:
    """Return the models that failed and are neither named nor `settled` otherwise."""
    return {
        model: ModelLoad(
            GIVEN_UP if model in models else None, failure=load.failure, retry_at=load.retry_at
        )
        for model, load in earlier.items()
        if load.failure is not None and model not in settled
    }
