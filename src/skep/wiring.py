"""The only place that constructs services: settings in, a hive, a store or a run out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from skep.engines.base import Launch, engine_named
from skep.engines.control import only_one
from skep.engines.keeper import kill_marked
from skep.engines.lifecycle import RestartPolicy
from skep.engines.supervisor import Hive, Rebuild, Supervisor
from skep.errors import GatewayError, UserError
from skep.host.facts import read_host
from skep.host.nvidia import NvidiaReport
from skep.keyfile import keys_path, loose_mode, read_keys
from skep.settings import LOOPBACK, Gateway, Paths, Serve, Settings, Upstream, make_runtime, settings_of
from skep.weights.gguf import check_file
from skep.weights.pull import pull
from skep.wire.heads import parse_url

PullProgress = Callable[[int, int | None], None]

REMOTE = "remote"  # the engine of a launch that skep does not start


def build_hive(settings: Settings, paths: Paths, listener: socket.socket, progress: PullProgress) -> Hive:
    """Every replica checked before the first one starts. May fetch weights."""
    gateway = settings.gateway
    scheme = "https" if gateway.tls_certificate else "http"
    host = f"[{gateway.host}]" if ":" in gateway.host else gateway.host
    return Hive(
        replicas=plan_launches(settings, paths, progress),
        gateway_argv=(sys.executable, "-m", "skep.gateway.process"),
        gateway_setup=gateway_setup(settings, paths),
        url=f"{scheme}://{host}:{listener.getsockname()[1]}",
        socket_path=paths.socket,
        log_dir=paths.logs,
        policy=RestartPolicy(start_deadline_s=settings.start_deadline_s),
        drain_s=settings.drain_s,
        wishes=asdict(settings.wishes),
    )


def rebuild_hive(began: Settings, settings: Settings, hive: Hive, paths: Paths, running: Sequence[Launch]) -> Hive:
    """The hive that these settings make of a running one. Its door stays as it began: address, TLS, SKEP_API_KEY."""
    old, new = began.gateway, settings.gateway
    door = {key: getattr(old, key) for key in ("host", "port", "tls_certificate", "tls_key", "api_key")}
    settings = replace(settings, gateway=replace(new, **door))
    setup = gateway_setup(settings, paths)
    pairs = {
        "host": (old.host, new.host),
        "port": (old.port, new.port),
        "tls": ((old.tls_certificate, old.tls_key), (new.tls_certificate, new.tls_key)),
        "body_limit": (hive.gateway_setup["server"], setup["server"]),
        "store_requests": (hive.gateway_setup["store"], setup["store"]),
    }
    nobody = setup["keys_wanted"] and not setup["keys"] and not setup["api_key"]
    locked = ["no key is left: every request is refused; `skep key add NAME` makes one"] if nobody else []
    loose = loose_mode(keys_path(paths))
    return replace(
        hive,
        replicas=plan_launches(settings, paths, running=running),
        gateway_setup=setup,
        policy=RestartPolicy(start_deadline_s=settings.start_deadline_s),
        drain_s=settings.drain_s,
        wishes=asdict(settings.wishes),
        left_out=tuple(key for key, (before, after) in pairs.items() if before != after),
        warnings=(*locked, *([loose] if loose else [])),
    )


def gateway_setup(settings: Settings, paths: Paths) -> dict[str, Any]:
    """What the gateway process is told before it listens. docs/architecture.md names the parts."""
    gateway = settings.gateway
    tls = check_tls(gateway)
    return {
        "limits": {
            "max_queue": gateway.max_queue,
            "max_wait_s": gateway.max_wait_s,
            "aging_s": gateway.aging_s,
            "dead_after_s": gateway.dead_after_s,
        },
        "timeouts": {
            "first_byte_s": gateway.first_byte_timeout_s,
            "idle_s": gateway.idle_timeout_s,
            "total_s": gateway.total_timeout_s,
        },
        "api_key": gateway.api_key,
        "keys": [asdict(key) for key in read_keys(keys_path(paths))],
        "keys_wanted": gateway.open_to_others,
        "aliases": dict(settings.aliases),
        "origins": list(gateway.cors_origins),
        "server": {"body_bytes": gateway.body_limit_bytes},
        "tls": tls,
        "store": str(paths.store) if gateway.store_requests else None,
        "log": str(paths.logs / "requests.log"),
    }


def check_tls(gateway: Gateway) -> dict[str, str] | None:
    """Whether certificate and key can be read and belong together."""
    if gateway.tls_certificate is None or gateway.tls_key is None:
        return None
    for what, path in (("tls_certificate", gateway.tls_certificate), ("tls_key", gateway.tls_key)):
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise UserError(f"`{what}` `{path}` cannot be read: {error.strerror}", hint="check the path") from None

    def no_passphrase() -> str:
        hint = f"`openssl pkey -in {gateway.tls_key} -out plain.pem` writes one without; keep it to yourself"
        raise UserError(f"`tls_key` `{gateway.tls_key}` has a passphrase", hint=hint)

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            gateway.tls_certificate, gateway.tls_key, password=no_passphrase
        )
    except ssl.SSLError as error:
        if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"):
            what = f"`tls_key` `{gateway.tls_key}` does not belong to `{gateway.tls_certificate}`"
            raise UserError(what, hint="name the key that the certificate was made with") from None
        what = f"`{gateway.tls_certificate}` and `{gateway.tls_key}` are no certificate and key: {error.reason}"
        raise UserError(what, hint="both are PEM files; the certificate comes first in its file") from None
    return {"certificate": gateway.tls_certificate, "key": gateway.tls_key}


def bind(gateway: Gateway, *, guarded: bool) -> socket.socket:
    """The gateway's listening socket, taken before anything is started. `guarded`: it wants a key."""
    if gateway.open_to_others and not guarded:
        hint = "`skep key add NAME` makes a key; or set SKEP_API_KEY to one of your own, or bind 127.0.0.1"
        raise UserError(f"binding `{gateway.host}` without an API key would let anybody in", hint=hint)
    family = socket.AF_INET6 if ":" in gateway.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((gateway.host, gateway.port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            hint = "choose another one with --port, or --port 0 for any"
            raise GatewayError(f"port {gateway.port} on {gateway.host} is in use", hint=hint) from None
        why = error.strerror or str(error)
        raise GatewayError(
            f"cannot bind {gateway.host}:{gateway.port}: {why}", hint="choose another --host or --port"
        ) from None
    listener.listen(1024)
    return listener


def run_hive(
    settings: Settings,
    paths: Paths,
    notify: Callable[[Supervisor], None],
    *,
    progress: PullProgress = lambda _done, _total: None,
    parent_fd: int | None = None,
) -> None:
    """Serve until a signal, `skep down`, or the end of the pipe `parent_fd`. Returns when nothing runs any more."""
    make_runtime(paths.runtime)
    paths.logs.mkdir(parents=True, exist_ok=True)
    try:
        guarded = bool(settings.gateway.api_key or read_keys(keys_path(paths)))
        with only_one(paths.lock, paths.socket), bind(settings.gateway, guarded=guarded) as listener:
            kill_marked(f"{paths.logs}:")  # left by a skep whose keepers were killed with it
            paths.socket.unlink(missing_ok=True)  # left by a process that was killed: the lock says nobody serves it
            hive = build_hive(settings, paths, listener, progress)

            def rebuild(document: dict[str, Any], now: Hive, running: Sequence[Launch]) -> Hive:
                try:
                    wanted = settings_of(document)
                except (KeyError, TypeError) as error:
                    hint = "`skep down && skep up -d` starts the new one"
                    raise UserError(f"these settings are of another version of skep: {error}", hint=hint) from None
                return rebuild_hive(settings, wanted, now, paths, running)

            asyncio.run(_supervise(hive, listener, notify, parent_fd, rebuild))
    finally:
        with contextlib.suppress(OSError):  # not empty: the socket of another one, which is running
            paths.runtime.rmdir()


async def _supervise(
    hive: Hive,
    listener: socket.socket,
    notify: Callable[[Supervisor], None],
    parent_fd: int | None,
    rebuild: Rebuild,
) -> None:
    supervisor = Supervisor(hive, listener, notify, rebuild)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, supervisor.stop)
    if parent_fd is not None:
        loop.add_reader(parent_fd, _parent_gone, loop, parent_fd, supervisor)
    await supervisor.run()


def _parent_gone(loop: asyncio.AbstractEventLoop, parent_fd: int, supervisor: Supervisor) -> None:
    loop.remove_reader(parent_fd)
    supervisor.stop(0.0)


def plan_launches(
    settings: Settings,
    paths: Paths,
    progress: PullProgress = lambda _done, _total: None,
    *,
    running: Sequence[Launch] = (),
) -> tuple[Launch, ...]:
    """All replicas, checked: names, ports, weights, engines, aliases. May fetch weights."""
    served = [launch for serve in settings.serve for launch in _launches(serve, settings, paths, progress, running)]
    launches = (*served, *(_remote(upstream, settings.gateway) for upstream in settings.upstream))
    names = [launch.name for launch in launches]
    for name in names:
        if names.count(name) > 1:
            hint = "give one [[serve]] table more `replicas`, or an [[upstream]] a `name` of its own"
            raise UserError(f"two replicas are named `{name}`", hint=hint)
    for launch in launches:
        _check_shares(launch)
        if launch.engine != REMOTE:
            engine_named(launch.engine).check(launch)
    models = {launch.model for launch in launches}
    for alias, model in settings.aliases.items():
        if model not in models and "" not in models:  # the name of an upstream's model may be still to be asked
            raise UserError(
                f"the alias `{alias}` stands for `{model}`, which is not served",
                hint=f"served: {', '.join(sorted(models))}",
            )
    return launches


def _remote(upstream: Upstream, gateway: Gateway) -> Launch:
    origin, _ = parse_url(upstream.url, name="upstream")
    if origin.port == gateway.port and origin.host in (*LOOPBACK, gateway.host):
        hint = "choose another --port for the gateway"
        raise UserError(f"upstream `{upstream.url}` is the gateway's own address", hint=hint)
    if upstream.key_env is not None and not os.environ.get(upstream.key_env):
        hint = f"export {upstream.key_env}=KEY where skep is started, or leave `key_env` out"
        raise UserError(f"the key of upstream `{upstream.name}` is not in the environment", hint=hint)
    return Launch(
        name=upstream.name,
        engine=REMOTE,
        model=upstream.model or "",
        weights=None,
        slots=upstream.slots,
        context_tokens=0,
        threads=0,
        reserve=upstream.reserve,
        soft_slots=upstream.soft_slots,
        url=upstream.url,
        health_path=upstream.health_path,
        key_env=upstream.key_env,
    )


def _check_shares(launch: Launch) -> None:
    if launch.reserve >= launch.slots:
        hint = "leave at least one slot for the others"
        raise UserError(f"`{launch.name}`: `reserve` {launch.reserve} of {launch.slots} slots", hint=hint)
    if launch.soft_slots is not None and launch.soft_slots > launch.slots:
        hint = "leave it out for all of them"
        raise UserError(f"`{launch.name}`: `soft_slots` {launch.soft_slots} of {launch.slots} slots", hint=hint)


def _launches(
    serve: Serve, settings: Settings, paths: Paths, progress: PullProgress, running: Sequence[Launch]
) -> list[Launch]:
    weights = _weights(serve, paths, progress)
    last_port = serve.engine_port + serve.replicas - 1
    if serve.engine_port and (last_port > 65535 or serve.engine_port <= settings.gateway.port <= last_port):
        hint = f"the replicas want {serve.engine_port} to {last_port}, the gateway {settings.gateway.port}"
        raise UserError(f"--engine-port {serve.engine_port} leaves no room", hint=hint)
    replicas = sum(other.replicas for other in settings.serve)
    threads = serve.threads or max(1, read_host(NvidiaReport()).cpu_cores // replicas)
    model = Path(serve.model).stem.lower() if weights is not None and serve.model.endswith(".gguf") else serve.model
    known = {} if serve.threads else {launch.name: launch.threads for launch in running}
    return [
        Launch(
            name=f"{model}-{number}",
            engine=serve.engine,
            model=model,
            weights=weights,
            slots=serve.slots,
            context_tokens=serve.context_tokens,
            threads=known.get(f"{model}-{number}", threads),  # one replica more is no reason to restart the others
            port=serve.engine_port + number if serve.engine_port else 0,
            extra=serve.extra,
            reserve=serve.reserve,
            soft_slots=serve.soft_slots,
            about=serve.about,
        )
        for number in range(serve.replicas)
    ]


def _weights(serve: Serve, paths: Paths, progress: PullProgress) -> Path | None:
    """The file, pulled if need be and checked: a damaged one is found here and not by a dying engine."""
    if serve.engine != "embedded":
        return None
    path = pull(serve.model, cache_dir=paths.cache, progress=progress).path
    trained = check_file(path).context_length
    if trained is not None and serve.context_tokens > trained:
        what = f"--context {serve.context_tokens} is beyond the {trained} tokens `{serve.model}` was trained for"
        raise UserError(what, hint=f"--context is per slot; use {trained} at most")
    return path
