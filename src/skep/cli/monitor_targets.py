"""`skep monitor add`, `list` and `remove`: which targets are watched."""

from __future__ import annotations

import asyncio
import os
import re
import time
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from skep.cli.monitor_words import NOTHING_YET, loop_pid, runs_with_up, series_if_any, series_to_read, series_to_write
from skep.cli.output import note, print_json, print_table
from skep.errors import SkepError, UserError
from skep.series import Target, TargetKind
from skep.units import format_seconds

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,63}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SHORTEST_S = 10.0
LONGEST_S = 366 * 86400.0
SHORTEST_TIMEOUT_S = 0.1
CHECK_S = 10.0  # for the question that `add` asks


@dataclass(frozen=True, slots=True)
class Found:
    """What answered when a target was added."""

    model: str
    kind: TargetKind
    about: str


def add_target(target: Target, *, own: bool, check: bool, as_json: bool) -> None:
    """`own`: the URL is that of this installation's gateway."""
    refuse_nonsense(target)
    with series_to_write() as series:
        taken = next((known for known in series.targets() if known.name == target.name), None)
        if taken is not None:
            hint = f"choose another name, or `skep monitor remove {target.name}` first: its history stays and goes on"
            raise UserError(f"`{target.name}` is watched already, at {taken.url}", hint=hint)
        found = asyncio.run(_look(target)) if check else None
        kind = found.kind if found else TargetKind.GATEWAY if own else target.kind
        target = replace(target, kind=kind, key_env=key_env_of(target, kind), added_at=time.time())
        series.put_target(target)
    running = wake_monitor()
    if as_json:
        print_json({**target_document(target), "about": found and found.about, "probing": running})
        return
    told = f"{found.model} at {target.url} ({found.about})" if found else f"{target.url}, not asked"
    note(f"`{target.name}`: {told}")
    if not check and target.key_env is not None and not os.environ.get(target.key_env):
        note(f"`{target.key_env}` is not set here; probes fail until it is, where the loop is started")
    note(f"it is probed every {words_of(target.every_s)} ({runs_of(target)})")
    if not running:
        also = ", and `skep up` with its next start" if runs_with_up() else ""
        note(f"nothing probes yet: `skep monitor run` does{also}")


def refuse_nonsense(target: Target) -> None:
    from skep.wire.heads import parse_url

    if not NAME.fullmatch(target.name):
        hint = "1 to 64 letters, digits, dots and dashes, the first one a letter or a digit"
        raise UserError(f"`{target.name}` is no name for a target", hint=hint)
    parse_url(target.url)
    parts = urlsplit(target.url if "://" in target.url else f"http://{target.url}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        hint = "it is stored and shown: keys come from a variable, `--key-env VAR`"
        raise UserError("--url has more in it than a base URL has: a user, a `?` or a `#`", hint=hint)
    if target.key_env is not None and not VARIABLE.fullmatch(target.key_env):
        hint = "put the key into a variable, and write --key-env MY_KEY; the key itself is never kept"
        raise UserError("--key-env is not the name of a variable", hint=hint)
    if target.model is not None and not target.model.isprintable():
        raise UserError("--model is not a name that can be printed", hint="copy it from `/v1/models`")
    if target.api not in ("openai", "ollama"):
        raise UserError(f"--api `{target.api}` is unknown", hint="choose openai or ollama")
    if target.every_s < SHORTEST_S:
        hint = "a probe is load: every minute is often, every hour is usual"
        raise UserError(f"--every {words_of(target.every_s)} is too often", hint=hint)
    if target.every_s > LONGEST_S:
        raise UserError(f"--every {words_of(target.every_s)} is too rare", hint="at least once a year: --every 30d")
    if target.timeout_s < SHORTEST_TIMEOUT_S:
        hint = "an answer takes a while; 300 s is the default"
        raise UserError(f"--timeout {words_of(target.timeout_s)} is too short", hint=hint)
    if target.jitter >= target.every_s:
        raise UserError(
            "--jitter is not shorter than --every", hint="a tenth of it is the default; --jitter 0s is none"
        )


def key_of(target: Target) -> str | None:
    """The variable that it names; else the key that skep itself has for a server on this machine."""
    from skep.engines.enginekey import local_key
    from skep.places import user_paths

    if target.key_env is None:
        return local_key(target.url, os.environ, user_paths(os.environ))
    value = os.environ.get(target.key_env)
    if not value:
        hint = f"export {target.key_env}=... first, also where `skep up` or `skep monitor run` is started"
        raise UserError(f"--key-env `{target.key_env}` is not set", hint=hint)
    return value


def key_env_of(target: Target, kind: TargetKind) -> str | None:
    """The gateway's own key is in a variable of its own, where it was set."""
    own = kind is TargetKind.GATEWAY and target.key_env is None and key_of(target) is not None
    return "SKEP_API_KEY" if own else target.key_env


async def _look(target: Target) -> Found:
    from skep.bench.endpoint import find_endpoint
    from skep.places import LOOPBACK

    key = key_of(target)
    try:
        timeout_s = min(CHECK_S, target.timeout_s)
        endpoint = await find_endpoint(target.url, target.model, key=key, api=target.api, timeout_s=timeout_s)
    except SkepError as error:
        error.hint = f"{error.hint or 'check the URL'}; --no-check adds it as it is"
        raise
    engine = endpoint.engine
    kind = TargetKind.ENDPOINT
    if "replicas" in engine:  # only skep's gateway tells it
        kind = TargetKind.GATEWAY
    elif endpoint.origin.host in LOOPBACK:
        kind = TargetKind.REPLICA
    told = [str(engine.get("engine") or engine.get("server") or "an OpenAI-compatible server")]
    told += [f"{engine['slots']} slots"] if isinstance(engine.get("slots"), int) else []
    told += ["simulated"] if endpoint.simulated else []
    return Found(endpoint.model, kind, ", ".join([str(kind), *told]))


def wake_monitor() -> bool:
    """Whether somebody probes: the hive that runs here is asked to, where one does."""
    from skep.engines.control import ask, socket_of
    from skep.places import user_paths

    paths = user_paths(os.environ)
    if loop_pid() is not None:
        return True
    try:
        return bool(ask(socket_of(paths.lock, paths.socket), {"op": "monitor"}, timeout_s=5.0).get("running"))
    except SkepError:
        return False


def list_targets(*, everyone: bool, as_json: bool) -> None:
    with series_if_any() as series:
        found = series.targets(removed=everyone) if series else []
    if as_json:
        print_json([target_document(target) for target in found])
    elif not found:
        note(f"no target is watched; {NOTHING_YET}")
    else:
        rows = [
            [
                target.name, str(target.kind), words_of(target.every_s), target.url, target.model or "the only one",
                runs_of(target), target.key_env or "–", "removed" if target.removed_at is not None else "",
            ]
            for target in found
        ]  # fmt: skip
        print_table(("NAME", "KIND", "EVERY", "URL", "MODEL", "RUNS", "KEY IN", "NOTE"), rows)


def remove_target(name: str) -> None:
    with series_to_read() as series:
        series.target(name)
    with series_to_write() as series:
        now = time.time()
        series.remove_target(name, now)
        for alert in series.alerts(open_only=True):
            if alert.target == name and alert.id is not None:
                series.close_alert(alert.id, now, "the target was removed")
    note(f"`{name}` is no longer probed; its history stays")


def runs_of(target: Target) -> str:
    """ "short 64, long 512, c4" in tokens of output."""
    runs = [f"short {target.short_tokens}"]
    runs += [f"long {target.long_tokens}"] if target.long_tokens else []
    runs += [f"c{target.concurrency}"] if target.concurrency else []
    runs += [f"{target.quality_items} tasks"] if target.quality_items else []
    return ", ".join(runs)


def words_of(seconds: float) -> str:
    """1 h, 30 min, 45 s, without what is zero."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:g} s" if seconds < 60 else format_seconds(seconds)


def target_document(target: Target) -> dict[str, Any]:
    """The key's value is nowhere in it: it is not known."""
    return {
        "name": target.name,
        "kind": str(target.kind),
        "url": target.url,
        "model": target.model,
        "key_env": target.key_env,
        "api": target.api,
        "every_s": target.every_s,
        "jitter_s": target.jitter,
        "prompt_tokens": target.prompt_tokens,
        "short_tokens": target.short_tokens,
        "long_tokens": target.long_tokens,
        "concurrency": target.concurrency,
        "quality_items": target.quality_items,
        "timeout_s": target.timeout_s,
        "slower_pct": target.slower_pct,
        "ttft_ms": target.ttft_ms,
        "added_at": target.added_at,
        "removed_at": target.removed_at,
    }
