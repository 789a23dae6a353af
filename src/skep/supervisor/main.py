"""The process of a hive: settings in, a running supervisor out."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from skep.catalog.engines import kind_of
from skep.config.gateway_messages import (
    AdmissionLimits,
    BatchPlaces,
    GatewaySetup,
    Timeouts,
    TlsFiles,
)
from skep.config.keys import keys_path, read_keys
from skep.config.settings import GatewaySettings, Settings
from skep.deploy.gpu_assignment import read_machine
from skep.deploy.launches import PullProgress, plan_launches
from skep.engines.base import Launch, kept_key, new_key
from skep.errors import SkepError, StoreError, UserError
from skep.files import hold_lock
from skep.host.processes import kill_marked
from skep.paths import LOOPBACK, Paths, make_private, runtime_folder, user_paths
from skep.supervisor.control_commands import run_with_control, stop_limit_s
from skep.supervisor.end_deadline import EndDeadline
from skep.supervisor.lifecycle import RestartPolicy
from skep.supervisor.supervisor import BackgroundService, Hive, Supervisor
from skep.wire.listen import bind
from skep.wire.server_request import ServerLimits

Tell = Callable[[str], None]  # is called with a line for the user


class RemoteNodes(Protocol):
    """Machines of a cluster that replicas can be placed on."""

    def launches(
        self,
        settings: Settings,
        paths: Paths,
        *,
        running: Sequence[Launch] | None = None,
        **options: Any,
    ) -> tuple[Launch, ...]: ...

    def connect(self, paths: Paths, policy: RestartPolicy) -> BackgroundService: ...


SLOW_START_S = 1800.0
SLOW_WARM_UP_S = 600.0
SLOTS_PER_WORKER = 256
CORES_PER_WORKER = 4
LEFTOVERS_S = 10.0  # for what is still there once the supervisor has ended
HARD_END_LEAD_S = 1.0  # before `skep down` waits no more
MOST_FALLBACKS = 5  # changes of a launch before its replica is given up


def build_hive(
    settings: Settings,
    paths: Paths,
    listener: socket.socket,
    progress: PullProgress,
    tell: Tell = lambda _line: None,
    nodes: RemoteNodes | None = None,
) -> Hive:
    """Return the hive, every replica checked; may download weights.

    `tell` is called with a line for each replica that is left out.
    """
    gateway = settings.gateway
    scheme = "https" if gateway.tls_certificate else "http"
    host = f"[{gateway.host}]" if ":" in gateway.host else gateway.host
    machine = read_machine()
    engine_key = new_key() if settings.cluster is None else ""  # a cluster has its own key
    if nodes is not None:
        launches = nodes.launches(settings, paths, progress=progress, tell=tell)
    else:
        launches = plan_launches(settings, paths, progress, machine=machine, engine_key=engine_key)
    slots = sum(launch.slots for launch in launches)
    workers = default_workers(slots, os.cpu_count() or 1)
    return Hive(
        replicas=launches,
        gateway_argv=(sys.executable, "-m", "skep.gateway.main"),
        url=f"{scheme}://{host}:{listener.getsockname()[1]}",
        log_dir=paths.logs,
        room=machine.room,
        engine_key=engine_key,
        **_from_settings(settings, paths, workers),
    )


def default_workers(slots: int, cpus: int) -> int:
    """Return how many processes carry answers: one for every 256 slots, on at most a quarter of
    the cores.
    """
    return max(1, min(math.ceil(slots / SLOTS_PER_WORKER), cpus // CORES_PER_WORKER))


def _from_settings(settings: Settings, paths: Paths, workers: int) -> dict[str, Any]:
    """Return the fields of a Hive that follow from the settings alone.

    `workers`: of the gateway, where the settings name no number.
    """
    policy = RestartPolicy()
    if any(not kind_of(serve.engine).part_of_skep for serve in settings.serve):
        # External engines load much and compile kernels.
        policy = RestartPolicy(start_deadline_s=SLOW_START_S, warm_deadline_s=SLOW_WARM_UP_S)
    start_s = settings.start_deadline_s or policy.start_deadline_s
    fallbacks = MOST_FALLBACKS if settings.fallback else 0
    return {
        "settings": settings,
        "gateway_setup": replace(
            gateway_setup(settings, paths), workers=settings.gateway.workers or workers
        ),
        "policy": replace(policy, start_deadline_s=start_s, fallbacks=fallbacks),
        "drain_s": settings.drain_s,
        "monitor_argv": monitor_argv(settings),
        "monitor_due": something_to_watch(paths.store),
    }


def monitor_argv(settings: Settings) -> tuple[str, ...]:
    """Return the command of the monitor beside this hive; empty where the settings turn it off."""
    if not settings.monitor.with_up:
        return ()
    command = (sys.executable, "-m", "skep", "monitor", "run")
    if settings.overrides.config:
        return (*command, "--config", settings.overrides.config)
    return command


def something_to_watch(path: Path) -> bool:
    """Return whether the store has targets to probe; False where it cannot be read."""
    if path.exists():
        from skep.store.database import open_store

        with contextlib.suppress(StoreError), open_store(path, read_only=True) as store:
            return bool(store.read("SELECT 1 FROM targets WHERE removed_at IS NULL LIMIT 1"))
    return False


def rebuild_hive(
    began: Settings,
    settings: Settings,
    hive: Hive,
    paths: Paths,
    running: Sequence[Launch],
    nodes: RemoteNodes | None,
) -> Hive:
    """Return the running hive with these settings.

    Its address, TLS files and key stay as they were at the start.
    """
    old = began.gateway
    new = settings.gateway
    unchangeable = ("host", "port", "tls_certificate", "tls_key", "api_key")
    at_start = {key: getattr(old, key) for key in unchangeable}
    clusters = (began.cluster, settings.cluster)
    settings = replace(settings, gateway=replace(new, **at_start), cluster=began.cluster)
    parts = _from_settings(settings, paths, hive.gateway_setup.workers)
    setup: GatewaySetup = parts["gateway_setup"]
    # What only a restart applies: as it was, and as the settings have it.
    pairs = {
        "host": (old.host, new.host),
        "port": (old.port, new.port),
        "tls": ((old.tls_certificate, old.tls_key), (new.tls_certificate, new.tls_key)),
        "body_limit": (hive.gateway_setup.server.body_bytes, setup.server.body_bytes),
        "address_share": (hive.gateway_setup.server.address_share, setup.server.address_share),
        "cluster": clusters,
        "start_deadline and fallback": (
            hive.policy,
            hive.policy if nodes is None else parts["policy"],
        ),
        "store_requests": (hive.gateway_setup.store, setup.store),
        "workers": (hive.gateway_setup.workers, setup.workers),
    }
    warnings = []
    if setup.keys_wanted and not setup.keys and not setup.api_key:
        warnings = ["no key is left: every request is refused; `skep key add NAME` makes one"]
    if nodes is not None:
        launches = nodes.launches(settings, paths, running=running)
        parts["policy"] = hive.policy  # the actors were created with it
    else:
        launches = plan_launches(
            settings, paths, running=running, starting=False, engine_key=hive.engine_key
        )
    return replace(
        hive,
        replicas=launches,
        **parts,
        left_out=tuple(key for key, (before, after) in pairs.items() if before != after),
        warnings=tuple(warnings),
    )


def gateway_setup(settings: Settings, paths: Paths) -> GatewaySetup:
    """Return what the gateway process is told before it listens."""
    gateway = settings.gateway
    return GatewaySetup(
        limits=AdmissionLimits(
            gateway.max_queue,
            gateway.max_wait_s,
            aging_s=gateway.aging_s,
            dead_after_s=gateway.dead_after_s,
        ),
        timeouts=Timeouts(
            first_byte_s=gateway.first_byte_timeout_s,
            idle_s=gateway.idle_timeout_s,
            total_s=gateway.total_timeout_s,
            comment_after_s=gateway.comment_after_s,
        ),
        api_key=gateway.api_key,
        keys=read_keys(keys_path(paths)),
        keys_wanted=gateway.open_to_others,
        aliases=settings.aliases,
        strict_models=gateway.strict_models,
        origins=gateway.cors_origins,
        hosts=None if gateway.open_to_others else frozenset((*LOOPBACK, gateway.host)),
        server=server_limits(gateway),
        tls=check_tls(gateway),
        store=str(paths.store) if gateway.store_requests else None,
        batches=BatchPlaces(str(paths.store), str(paths.data / "files")),
        log=str(paths.logs / "requests.log"),
    )


def server_limits(gateway: GatewaySettings) -> ServerLimits:
    share_pct = gateway.address_share_pct
    if share_pct is None:
        share_pct = 100.0
    return ServerLimits(body_bytes=gateway.body_limit_bytes, address_share=share_pct / 100)


def check_tls(gateway: GatewaySettings) -> TlsFiles | None:
    """Return the paths of certificate and key.

    Raise where they cannot be read or do not belong together.
    """
    certificate = gateway.tls_certificate
    key = gateway.tls_key
    if certificate is None or key is None:
        return None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            certificate, key, password=lambda: ""
        )
    except OSError as error:
        why = getattr(error, "reason", None) or error.strerror
        hint = (
            "both are PEM files that belong together; the key has no passphrase, the "
            "certificate comes first"
        )
        raise UserError(
            f"`tls_certificate` {certificate} and `tls_key` {key}: {why}", hint=hint
        ) from None
    return TlsFiles(certificate, key)


def run_hive(
    settings: Settings,
    paths: Paths,
    reporter: StartReporter,
    parent_fd: int | None,
    nodes: RemoteNodes | None,
) -> None:
    """Serve until a signal, `skep down`, or the end of the pipe `parent_fd`; return when every
    process has ended.
    """
    make_private(paths.logs)
    guarded = bool(settings.gateway.api_key or read_keys(keys_path(paths)))
    host = settings.gateway.host
    port = settings.gateway.port
    lock = hold_lock(
        paths.lock, "skep", "`skep ps` shows it, `skep down` stops it", str(paths.socket)
    )
    with lock, runtime_folder(paths.runtime), bind(host, port, guarded=guarded) as listener:
        mark = f"{paths.logs}:"
        kill_marked(mark)  # left by a skep whose guard processes were killed with it
        paths.socket.unlink(missing_ok=True)  # left by a process that was killed: we hold its lock
        hive = build_hive(settings, paths, listener, reporter.progress, reporter.warn, nodes)
        deadline = EndDeadline(mark)

        def changed(supervisor: Supervisor) -> None:
            reporter.changed(supervisor)
            if supervisor.phase == "stopping":
                deadline.set(supervisor.hive.drain_s + stop_limit_s(supervisor) - HARD_END_LEAD_S)

        def rebuild(new_settings: Settings, now: Hive, running: Sequence[Launch]) -> Hive:
            return rebuild_hive(settings, new_settings, now, paths, running, nodes)

        async def supervise() -> None:
            remote = None if nodes is None else nodes.connect(paths, hive.policy)
            supervisor = Supervisor(hive, listener, changed, rebuild, remote)
            _stop_on_signals(supervisor, parent_fd)
            try:
                await run_with_control(supervisor, paths.socket)
            except Exception as error:
                reporter.failed(error)
                raise
            finally:
                deadline.set(LEFTOVERS_S)

        with kept_key(paths.state, hive.engine_key):
            asyncio.run(supervise())


def _stop_on_signals(supervisor: Supervisor, parent_fd: int | None) -> None:
    """Stop at a signal, and without a drain at the end of the pipe."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, supervisor.stop)

    def parent_gone(fd: int) -> None:
        loop.remove_reader(fd)
        supervisor.stop(0.0)

    if parent_fd is not None:
        loop.add_reader(parent_fd, parent_gone, parent_fd)


# The process behind `skep up`, which reports to the process that started it, in JSON lines

LOGGED_KEYS = ("name", "node", "pid", "url", "why")  # of a row


def description(supervisor: Supervisor) -> dict[str, Any]:
    """Return what `skep up --json` prints."""
    url = supervisor.hive.url
    rows = supervisor.last_rows
    replicas = [row for row in rows if row["kind"] in ("replica", "upstream")]
    models = sorted({row["model"] for row in replicas if row["model"]})
    return {
        "url": url,
        "openai_base_url": f"{url}/v1",
        "models": models,
        "pid": os.getpid(),
        "replicas": replicas,
    }


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


class StartReporter:
    """Reports to the process that started us, as long as it listens, and logs what is new."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._fd: int | None = fd
        self._warnings: set[str] = set()
        self._logged: dict[str, tuple[object, ...]] = {}  # state and pid, by the row's name
        self._was_ready = False
        self._has_failed = False

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def tell(self, **message: Any) -> None:
        try:
            if self._fd is not None:
                os.write(self._fd, json.dumps(message).encode() + b"\n")
        except OSError:
            self.close()

    def warn(self, line: str) -> None:
        _log(f"warning: {line}")
        self.tell(warning=line)

    def failed(self, error: Exception) -> None:
        """Send why it does not start, or serves no more; of several errors, the first."""
        if self._has_failed:
            return
        self._has_failed = True
        if isinstance(error, SkepError):
            message = error.message
            hint = error.hint
            exit_code = error.exit_code
        else:
            message = f"unexpected {type(error).__name__}: {error}"
            hint = "see `skep logs skep`"
            exit_code = 1
        _log(f"error: {message}")
        self.tell(error=message, hint=hint, exit_code=exit_code)

    def progress(self, done: int, total: int | None) -> None:
        self.tell(done=done, total=total)

    def changed(self, supervisor: Supervisor) -> None:
        """Warn of what could not be ended, log rows with a new state, and send all rows."""
        for text in supervisor.left_behind:
            if text not in self._warnings:
                self._warnings.add(text)
                self.warn(text)
        for row in supervisor.last_rows:
            name = row["name"]
            state = (row["state"], row["pid"] if row["state"] == "ready" else None)
            if self._logged.get(name) != state:
                self._logged[name] = state
                _log(_log_line(row))
        self.tell(rows=supervisor.last_rows)
        if supervisor.phase == "ready" and not self._was_ready:
            self._was_ready = True
            self.tell(ready=description(supervisor))


def _log_line(row: dict[str, Any]) -> str:
    fields = []
    for key in LOGGED_KEYS:
        if row.get(key) is not None:
            text = str(row[key])
            fields.append(f'{key}="{text}"' if " " in text else f"{key}={text}")
    time = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    return f"{time} {row['kind']}.{row['state']} {' '.join(fields)}"


def run_detached(nodes_of: Callable[[Settings], RemoteNodes | None]) -> int:
    """Run that process, and return its exit code.

    `nodes_of` returns the nodes of the cluster that the settings name, if any.
    """
    parser = argparse.ArgumentParser(prog="skep-detached")
    parser.add_argument("--announce-fd", type=int, required=True)
    parser.add_argument("--parent-fd", type=int)
    args = parser.parse_args()
    reporter = StartReporter(args.announce_fd)
    try:
        settings = msgspec.json.decode(sys.stdin.buffer.read(), type=Settings)
        run_hive(settings, user_paths(os.environ), reporter, args.parent_fd, nodes_of(settings))
    except SkepError as error:
        reporter.failed(error)
        return error.exit_code
    except Exception as error:
        reporter.failed(error)
        raise
    return 0
