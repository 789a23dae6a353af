"""The only place that constructs services: settings in, a hive, a store or a run out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from skep.engines.base import Launch, engine_named
from skep.engines.control import only_one
from skep.engines.keeper import kill_marked
from skep.engines.lifecycle import RestartPolicy
from skep.engines.supervisor import Hive, Supervisor
from skep.errors import GatewayError, UserError
from skep.host.facts import read_host
from skep.host.nvidia import NvidiaReport
from skep.settings import LOOPBACK, Gateway, Paths, Serve, Settings, make_runtime
from skep.weights.gguf import check_file
from skep.weights.pull import pull

PullProgress = Callable[[int, int | None], None]


def build_hive(settings: Settings, paths: Paths, listener: socket.socket, progress: PullProgress) -> Hive:
    """Every replica checked before the first one starts. May fetch weights."""
    pairs = [
        (launch, engine_named(launch.engine))
        for serve in settings.serve
        for launch in _launches(serve, settings, paths, progress)
    ]
    names = [launch.name for launch, _ in pairs]
    if len(set(names)) < len(names):
        raise UserError("two [[serve]] tables name the same model", hint="give one table more `replicas` instead")
    for launch, engine in pairs:
        engine.check(launch)
    return Hive(
        replicas=tuple(pairs),
        gateway_argv=(sys.executable, "-m", "skep.gateway.process"),
        gateway_setup={
            "limits": {"max_queue": settings.gateway.max_queue, "max_wait_s": settings.gateway.max_wait_s},
            "api_key": settings.gateway.api_key,
        },
        url=f"http://{settings.gateway.host}:{listener.getsockname()[1]}",
        socket_path=paths.socket,
        log_dir=paths.logs,
        policy=RestartPolicy(start_deadline_s=settings.start_deadline_s),
        drain_s=settings.drain_s,
    )


def bind(gateway: Gateway) -> socket.socket:
    """The gateway's listening socket, taken before anything is started."""
    if gateway.host not in LOOPBACK and gateway.api_key is None:
        hint = "set SKEP_API_KEY to a key of your own, or bind 127.0.0.1"
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
        with only_one(paths.lock, paths.socket), bind(settings.gateway) as listener:
            kill_marked(f"{paths.logs}:")  # left by a skep whose keepers were killed with it
            paths.socket.unlink(missing_ok=True)  # left by a process that was killed: the lock says nobody serves it
            hive = build_hive(settings, paths, listener, progress)
            asyncio.run(_supervise(hive, listener, notify, parent_fd))
    finally:
        with contextlib.suppress(OSError):  # not empty: the socket of another one, which is running
            paths.runtime.rmdir()


async def _supervise(
    hive: Hive, listener: socket.socket, notify: Callable[[Supervisor], None], parent_fd: int | None
) -> None:
    supervisor = Supervisor(hive, listener, notify)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, supervisor.stop)
    if parent_fd is not None:
        loop.add_reader(parent_fd, _parent_gone, loop, parent_fd, supervisor)
    await supervisor.run()


def _parent_gone(loop: asyncio.AbstractEventLoop, parent_fd: int, supervisor: Supervisor) -> None:
    loop.remove_reader(parent_fd)
    supervisor.stop(0.0)


def _launches(serve: Serve, settings: Settings, paths: Paths, progress: PullProgress) -> list[Launch]:
    weights = _weights(serve, paths, progress)
    last_port = serve.engine_port + serve.replicas - 1
    if serve.engine_port and (last_port > 65535 or serve.engine_port <= settings.gateway.port <= last_port):
        hint = f"the replicas want {serve.engine_port} to {last_port}, the gateway {settings.gateway.port}"
        raise UserError(f"--engine-port {serve.engine_port} leaves no room", hint=hint)
    replicas = sum(other.replicas for other in settings.serve)
    threads = serve.threads or max(1, read_host(NvidiaReport()).cpu_cores // replicas)
    model = Path(serve.model).stem.lower() if weights is not None and serve.model.endswith(".gguf") else serve.model
    return [
        Launch(
            name=f"{model}-{number}",
            engine=serve.engine,
            model=model,
            weights=weights,
            slots=serve.slots,
            context_tokens=serve.context_tokens,
            threads=threads,
            port=serve.engine_port + number if serve.engine_port else 0,
            extra=serve.extra,
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
