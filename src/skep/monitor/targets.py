"""Targets: which are valid, what answers at their URLs, and how they are added."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from skep.bench.endpoint import Endpoint, find_endpoint
from skep.errors import SkepError, UserError
from skep.monitor.records import DAY_S, ProbeTarget, TargetKind
from skep.monitor.schedule import format_interval
from skep.monitor.store import SeriesStore
from skep.paths import LOOPBACK, user_paths
from skep.supervisor.control import local_key
from skep.units import parse_seconds
from skep.wire.heads import parse_url

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SHORTEST_S = 10.0
LONGEST_S = 366 * DAY_S
SHORTEST_TIMEOUT_S = 0.1
CHECK_S = 10.0  # for the request that is sent when a target is added


class AddedTarget(msgspec.Struct, frozen=True):
    """A target as it was stored, and what answered at its URL; None: nobody connected to it."""

    target: ProbeTarget
    model: str | None = None
    about: str | None = None

    def sentences(self) -> list[str]:
        target = self.target
        if self.about:
            answer = f"{self.model} at {target.url} ({self.about})"
        else:
            answer = f"{target.url}, not asked"
        schedule = f"it is probed every {format_interval(target.every_s)} ({runs_of(target)})"
        return [f"`{target.name}`: {answer}", schedule]


def add_target(
    series: SeriesStore,
    target: ProbeTarget,
    env: Mapping[str, str],
    now: float,
    *,
    own_gateway: bool,
    check: bool,
) -> AddedTarget:
    """Store a target.

    `own_gateway`: its URL is that of this installation's gateway. `check`: connect to it first.
    """
    check_target(target)
    for watched in series.targets():
        if watched.name == target.name:
            raise UserError(
                f"`{target.name}` is watched already, at {watched.url}",
                hint=f"choose another name, or `skep monitor remove {target.name}` first: "
                "its history is kept",
            )
    endpoint = _connect(target, env) if check else None
    if endpoint is not None:
        kind = _kind_of(endpoint)
    elif own_gateway:
        kind = TargetKind.GATEWAY
    else:
        kind = target.kind
    key_env = target.key_env
    if kind is TargetKind.GATEWAY and key_env is None and _key(target, env) is not None:
        key_env = "SKEP_API_KEY"
    target = replace(target, kind=kind, key_env=key_env, added_at=now)
    series.put_target(target)
    if endpoint is None:
        return AddedTarget(target)
    return AddedTarget(target, endpoint.model, f"{kind}, {_about(endpoint)}")


def _connect(target: ProbeTarget, env: Mapping[str, str]) -> Endpoint:
    """Return what answers at the target's URL. Raise SkepError where nothing usable does."""
    request = find_endpoint(
        target.url,
        target.model,
        key=_key(target, env),
        api=target.api,
        timeout_s=min(CHECK_S, target.timeout_s),
    )
    try:
        return asyncio.run(request)
    except SkepError as error:
        error.hint = f"{error.hint or 'check the URL'}; --no-check adds it as it is"
        raise


def _kind_of(endpoint: Endpoint) -> TargetKind:
    if "replicas" in endpoint.engine:  # only skep's gateway reports its replicas
        return TargetKind.GATEWAY
    if endpoint.origin.host in LOOPBACK:
        return TargetKind.REPLICA
    return TargetKind.ENDPOINT


def _about(endpoint: Endpoint) -> str:
    engine = endpoint.engine
    about = [str(engine.get("engine") or engine.get("server") or "an OpenAI-compatible server")]
    if isinstance(engine.get("slots"), int):
        about.append(f"{engine['slots']} slots")
    if endpoint.simulated:
        about.append("simulated")
    return ", ".join(about)


def check_target(target: ProbeTarget) -> None:
    """Raise UserError, in terms of the options of `skep monitor add`, for a target that cannot be
    probed.
    """
    interval = format_interval(target.every_s)
    timeout = format_interval(target.timeout_s)
    if "://" in target.name:
        hint = "the name comes first: `skep monitor add box --url URL`"
        raise UserError("a URL stands where the name of the target belongs", hint=hint)
    if not _NAME.fullmatch(target.name):
        hint = "1 to 64 letters, digits, dots and dashes, the first one a letter or a digit"
        raise UserError(f"`{target.name}` is not a valid target name", hint=hint)
    parse_url(target.url)
    parts = urlsplit(target.url if "://" in target.url else f"http://{target.url}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        hint = "the URL is stored and shown; give the key in a variable with `--key-env VAR`"
        raise UserError("--url must be a base URL, without a user, a `?` or a `#`", hint=hint)
    if target.key_env is not None and not _VARIABLE.fullmatch(target.key_env):
        hint = "put the key into a variable and pass its name: --key-env MY_KEY"
        raise UserError("--key-env is not the name of a variable", hint=hint)
    if target.model is not None and not target.model.isprintable():
        raise UserError(
            "--model has characters that cannot be printed", hint="copy it from `/v1/models`"
        )
    if target.api not in ("openai", "ollama"):
        raise UserError(f"--api `{target.api}` is unknown", hint="choose openai or ollama")
    if target.every_s < SHORTEST_S:
        hint = "a probe costs the target load: `--every 1h` is usual, 10s is the least"
        raise UserError(f"--every {interval} is too often", hint=hint)
    if target.every_s > LONGEST_S:
        raise UserError(
            f"--every {interval} is too long",
            hint="the longest interval is a year; try `--every 30d`",
        )
    if target.timeout_s < SHORTEST_TIMEOUT_S:
        raise UserError(
            f"--timeout {timeout} is too short", hint="use at least 0.1s; the default is 300s"
        )


def _key(target: ProbeTarget, env: Mapping[str, str]) -> str | None:
    """Return the key in the variable `key_env`, else skep's own key for a server on this
    machine.
    """
    if target.key_env is None:
        return local_key(target.url, env, user_paths(env))
    key = env.get(target.key_env)
    if key:
        return key
    hint = (
        f"export {target.key_env}=... first, also where `skep up` or `skep monitor run` is started"
    )
    raise UserError(f"--key-env `{target.key_env}` is not set", hint=hint)


def runs_of(target: ProbeTarget) -> str:
    """Return the runs of a probe in tokens of output: `short 64, long 512, c4`."""
    runs = [f"short {target.short_tokens}"]
    if target.long_tokens:
        runs.append(f"long {target.long_tokens}")
    if target.concurrency:
        runs.append(f"c{target.concurrency}")
    return ", ".join(runs)


def moment_of(text: str, now: float, *, option: str) -> float:
    """Parse `7d` as that long ago, `2026-11-15` or `2026-11-15 14:30` as local time.

    No moment is before 1970.
    """
    with suppress(ValueError, OverflowError, OSError):
        return max(0.0, datetime.fromisoformat(text.strip()).timestamp())
    with suppress(UserError):
        return max(0.0, now - parse_seconds(text))
    hint = f"write it as `{option} 7d` (7 days ago) or `{option} 2026-11-15T14:30`"
    raise UserError(f"{option} `{text}` is not a time", hint=hint)


def parse_percent(text: str, *, option: str) -> float:
    """Parse `10%` or `10` as 10.0."""
    with suppress(ValueError):
        if 0 < (value := float(text.strip().removesuffix("%").strip())) < 100:
            return value
    raise UserError(
        f"{option} `{text}` is not a share between 0 and 100 %", hint=f"write it as `{option} 10%`"
    )
