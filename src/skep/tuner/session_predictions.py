"""What is known of configurations under sessions before anything is measured: turns a minute of
sessions that are played in virtual time, with KV in RAM where a configuration has it."""

from __future__ import annotations

from functools import cached_property

import msgspec
from msgspec.structs import replace

from skep.catalog.session_shapes import SessionShape, find_shape
from skep.planner.caching import KvTier
from skep.planner.choose import kv_in_ram
from skep.planner.memory import kv_bytes_per_token
from skep.planner.predict import SpeedModel, prospect
from skep.planner.session_outlook import SessionLevel, session_level, usual_turn
from skep.planner.setup import Rig, Setup
from skep.stats.slo import SloLimits
from skep.tuner.knobs import knob_value, most_kv_ram
from skep.tuner.predictions import Predictor
from skep.tuner.records import (
    ConfigFailure,
    KnobConfig,
    SessionReading,
    TuneReading,
    Value,
)
from skep.tuner.session_load import alone, fill_tokens
from skep.units import GIB

UNFORESEEN_READING_S = 45.0


class PlayedSessions(msgspec.Struct, frozen=True):
    """What a configuration gives the sessions of the goal."""

    level: SessionLevel
    fill_s: float  # until all sessions have sent what they hold from before


class SessionPredictor(Predictor):
    """Foresees the turns a minute of the goal's sessions."""

    free_ram_gib: float | None = None

    @cached_property
    def shape(self) -> SessionShape:
        assert self.aim.sessions is not None
        return alone(find_shape(self.aim.sessions.load))

    @cached_property
    def window_tokens(self) -> int:
        assert self.aim.sessions is not None
        return self.aim.sessions.window_tokens

    @cached_property
    def _played(self) -> dict[tuple[object, ...], PlayedSessions | None]:
        return {}

    def predict(self, config: KnobConfig) -> float | None:
        played = self.played(config)
        if played is None:
            return None
        return played.level.turns_per_min

    def start_s(self, config: KnobConfig) -> float:
        played = self.played(config)
        fill_s = played.fill_s if played is not None else 0.0
        return super().start_s(config) + fill_s

    def reading_s(self, config: KnobConfig) -> float:
        played = self.played(config)
        if played is None:
            return UNFORESEEN_READING_S
        return self._seconds_of(played.level)

    def figure(self, config: KnobConfig) -> TuneReading | ConfigFailure:
        fit = self.fit(config)
        if fit is not None and fit.over_bytes > 0:
            remedy = "fewer slots, a smaller KV type, or another share of the card"
            return ConfigFailure("out-of-memory", f"SIMULATED: {fit.sentence}", remedy=remedy)
        played = self.played(config)
        if played is None:
            return ConfigFailure("no-start", "the planner has no figure for it")
        assert self.aim.sessions is not None
        level = played.level
        turn = usual_turn(self.shape, self.window_tokens)
        first_ms = 1000 * level.first_token_s
        return TuneReading(
            figure=level.turns_per_min,
            effective_tok_s=level.turns_per_min * turn.output_tokens / 60,
            task_tok_s=None,
            ttft_ms=first_ms,
            tpot_ms=None,
            wall_s=self._seconds_of(level),
            requests=self.aim.concurrency * self.aim.sessions.turns,
            over_limit=self._share_of_limits(first_ms),
            sessions=SessionReading(
                session_s=level.session_s,
                first_p50_ms=first_ms,
                first_p95_ms=1000 * level.first_token_p95_s,
                hit_rate=level.hit_share,
            ),
        )

    def played(self, config: KnobConfig) -> PlayedSessions | None:
        """Return what the sessions get, played in virtual time; None: nothing is foreseen."""
        key = tuple(config.get(name) for name in self._predicted_knobs)
        if key not in self._played:
            self._played[key] = self._play(config)
        return self._played[key]

    def _play(self, config: KnobConfig) -> PlayedSessions | None:
        placed = self._placed(config)
        if placed is None:
            return None
        setup, rig = placed
        if setup.spec is not None and setup.spec.method == "ngram":
            setup = replace(setup, spec=None)
        speed_model = prospect(
            setup,
            rig,
            self._basis.constants,
            context=self._need_tokens,
            tuning=self._basis.tuning,
        )
        if speed_model.pool_tokens <= 0:
            return None
        ram = _tier(setup, rig, self._kv_ram(config))
        sessions = self.aim.concurrency
        level = session_level(speed_model, self.shape, sessions, self.window_tokens, ram)
        return PlayedSessions(level, self._fill_s(speed_model))

    def _fill_s(self, speed_model: SpeedModel) -> float:
        tokens = fill_tokens(self.shape, self.aim.concurrency, self.window_tokens)
        chunk_tokens = speed_model.chunk_tokens
        context = tokens / self.aim.concurrency / 2
        pass_s = speed_model.step.seconds(0, 0.0, chunk_tokens, context)
        return tokens / chunk_tokens * pass_s / speed_model.setup.layout.replicas

    def _seconds_of(self, level: SessionLevel) -> float:
        assert self.aim.sessions is not None
        turns = self.aim.concurrency * self.aim.sessions.turns
        return 60.0 * turns / max(1e-9, level.turns_per_min)

    def _share_of_limits(self, first_ms: float) -> float:
        if not self.aim.slo:
            return 0.0
        limits = SloLimits.parse(self.aim.slo).limits
        return max((first_ms / limit.ms for limit in limits if limit.name == "ttft"), default=0.0)

    def _kv_ram(self, config: KnobConfig) -> Value:
        return config.get("kv_ram", knob_value(self.base, "kv_ram"))

    def _find_refusal(self, config: KnobConfig) -> str | None:
        refusal = super()._find_refusal(config)
        kv_ram = self._kv_ram(config)
        setup = self.setup(config)
        if refusal is not None or setup is None or not isinstance(kv_ram, int):
            return refusal
        most_gib = most_kv_ram(self.free_ram_gib, setup.layout.replicas)
        if kv_ram > most_gib and kv_ram != knob_value(self.base, "kv_ram"):
            return f"{kv_ram} GiB of RAM for KV are more than the {most_gib} GiB that may be taken"
        return None


def _tier(setup: Setup, rig: Rig, kv_ram: Value) -> KvTier | None:
    """Return what so many GiB of memory hold of KV, and how fast that comes back."""
    usual = kv_in_ram(setup, rig)
    if not isinstance(kv_ram, int) or kv_ram <= 0 or usual is None:
        return None
    token_bytes = kv_bytes_per_token(setup) * setup.layout.cards_each
    return KvTier(kv_ram * GIB / token_bytes, usual.tokens_per_s)
