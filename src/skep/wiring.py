"""The only place that constructs services: settings in, a hive, a store or a run out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skep.engines.base import Launch
from skep.engines.control import only_one
from skep.engines.enginekey import kept_key, new_key
from skep.engines.lifecycle import RestartPolicy
from skep.engines.supervisor import Hive, Rebuild, Supervisor
from skep.errors import GatewayError, SkepError, StoreError, UserError
from skep.host.processes import kill_marked
from skep.keyfile import keys_path, loose_mode, read_keys
from skep.launching import Machine, PullProgress, plan_launches, read_machine
from skep.places import LOOPBACK, Paths, make_private, make_runtime
from skep.settings import OWN_ENGINES, Gateway, Monitor, Settings, settings_of

if TYPE_CHECKING:
    from skep.cluster.embassy import Embassy
    from skep.cluster.surveying import Surveys
    from skep.monitor.probe_lock import Turns
    from skep.store.database import Store

SLOW_START_S = 1800.0
SLOW_WARM_UP_S = 600.0
MOST_FALLBACKS = 5  # changes before a replica is given up


def build_hive(
    settings: Settings,
    paths: Paths,
    listener: socket.socket,
    progress: PullProgress,
    tell: Callable[[str], None] = lambda _line: None,
) -> Hive:
    """Every replica checked before the first one starts. May fetch weights. `tell` hears what is done without."""
    gateway = settings.gateway
    scheme = "https" if gateway.tls_certificate else "http"
    host = f"[{gateway.host}]" if ":" in gateway.host else gateway.host
    machine = read_machine()
    engine_key = new_key() if settings.cluster is None else ""  # a cluster has its own
    return Hive(
        replicas=launches_for(settings, paths, progress, machine=machine, engine_key=engine_key, tell=tell),
        gateway_argv=(sys.executable, "-m", "skep.frontdoor"),
        gateway_setup=gateway_setup(settings, paths),
        url=f"{scheme}://{host}:{listener.getsockname()[1]}",
        socket_path=paths.socket,
        log_dir=paths.logs,
        policy=_policy(settings),
        drain_s=settings.drain_s,
        settings=asdict(settings),
        wishes=asdict(settings.wishes),
        room=machine.room,
        max_loaded=settings.max_loaded,
        monitor_argv=monitor_argv(settings),
        monitor_setup=asdict(settings.monitor),
        monitor_due=something_to_watch(paths.store),
        engine_key=engine_key,
    )


def launches_for(
    settings: Settings,
    paths: Paths,
    progress: PullProgress = lambda _done, _total: None,
    *,
    running: Sequence[Launch] = (),
    machine: Machine | None = None,
    starting: bool = True,
    surveys: Surveys | None = None,
    avoid: Collection[str] = (),
    engine_key: str = "",
    tell: Callable[[str], None] = lambda _line: None,
) -> tuple[Launch, ...]:
    """The replicas that these settings mean, on this machine or on the nodes of a cluster as they are now.

    What is lost of a cluster is no reason to refuse settings under which every replica stays where it stands.
    """
    if settings.cluster is None:
        return plan_launches(
            settings, paths, progress, running=running, machine=machine, starting=starting, engine_key=engine_key
        )
    from skep.cluster.surveying import SPARED_S, SURVEY_S, Surveys
    from skep.placing import kept_launches, place_launches, shared_paths

    where, surveys = settings.cluster, surveys or Surveys()
    kept = None if starting else kept_launches(settings, paths, running)
    wait_s = SURVEY_S if kept is None else SPARED_S
    try:
        asked = shared_paths(settings)
        found = surveys.look(where.address, paths=asked, hive=where.hive, wait_s=wait_s)
        placed = place_launches(settings, paths, found, progress, running=running, avoid=avoid, tell=tell)
    except SkepError:
        if kept is None:
            raise
        placed = kept
    surveys.forget()
    return placed


def surveys_for(settings: Settings) -> Surveys | None:
    if settings.cluster is None:
        return None
    from skep.cluster.surveying import Surveys

    return Surveys()


def embassy_of(settings: Settings, paths: Paths) -> Embassy | None:
    """The link to the cluster that the replicas stand on."""
    if settings.cluster is None:
        return None
    from skep.cluster.embassy import Embassy
    from skep.cluster.ledger import ABANDONED_AFTER_S

    setup = {
        **asdict(settings.cluster),
        "policy": asdict(_policy(settings)),
        "abandoned_after_s": ABANDONED_AFTER_S,
    }
    return Embassy(setup, paths.logs / "envoy.log")


def monitor_argv(settings: Settings) -> tuple[str, ...]:
    """The loop of `skep monitor` beside this hive, with the same file; none where the settings say so."""
    if not settings.monitor.with_up:
        return ()
    told = ("--config", settings.wishes.config) if settings.wishes.config else ()
    return (sys.executable, "-m", "skep", "monitor", "run", *told)


def something_to_watch(path: Path) -> bool:
    """Whether the store has targets. A store that cannot be read is no reason not to serve."""
    if not path.exists():
        return False
    from skep.store.database import open_store
    from skep.store.series import SeriesStore

    try:
        with open_store(path, read_only=True) as store:
            return bool(SeriesStore(store).targets())
    except StoreError:
        return False


def _policy(settings: Settings) -> RestartPolicy:
    """Engines of others load tens of gigabytes and compile kernels before they answer."""
    patient = any(serve.engine not in OWN_ENGINES for serve in settings.serve)
    deadline_s = settings.start_deadline_s or (SLOW_START_S if patient else RestartPolicy().start_deadline_s)
    warm_s = SLOW_WARM_UP_S if patient else RestartPolicy().warm_deadline_s
    return RestartPolicy(
        start_deadline_s=deadline_s, warm_deadline_s=warm_s, fallbacks=MOST_FALLBACKS if settings.fallback else 0
    )


def rebuild_hive(
    began: Settings,
    settings: Settings,
    hive: Hive,
    paths: Paths,
    running: Sequence[Launch],
    surveys: Surveys | None = None,
) -> Hive:
    """The hive that these settings make of a running one. Its door stays as it began, and where."""
    old, new = began.gateway, settings.gateway
    door = {key: getattr(old, key) for key in ("host", "port", "tls_certificate", "tls_key", "api_key")}
    clusters = began.cluster, settings.cluster
    settings = replace(settings, gateway=replace(new, **door), cluster=began.cluster)
    setup = gateway_setup(settings, paths)
    pairs = {
        "host": (old.host, new.host),
        "port": (old.port, new.port),
        "tls": ((old.tls_certificate, old.tls_key), (new.tls_certificate, new.tls_key)),
        "body_limit": (hive.gateway_setup["server"], setup["server"]),
        "files_quota": (hive.gateway_setup["batches"], setup["batches"]),
        "cluster": clusters,
        "store_requests": (hive.gateway_setup["store"], setup["store"]),
    }
    nobody = setup["keys_wanted"] and not setup["keys"] and not setup["api_key"]
    locked = ["no key is left: every request is refused; `skep key add NAME` makes one"] if nobody else []
    loose = loose_mode(keys_path(paths))
    launches = launches_for(
        settings, paths, running=running, starting=False, surveys=surveys, avoid=hive.avoid, engine_key=hive.engine_key
    )
    return replace(
        hive,
        replicas=launches,
        gateway_setup=setup,
        policy=_policy(settings),
        drain_s=settings.drain_s,
        settings=asdict(settings),
        wishes=asdict(settings.wishes),
        max_loaded=settings.max_loaded,
        monitor_argv=monitor_argv(settings),
        monitor_setup=asdict(settings.monitor),
        monitor_due=something_to_watch(paths.store),
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
        "hosts": None if gateway.open_to_others else [*LOOPBACK, gateway.host],
        "server": {"body_bytes": gateway.body_limit_bytes},
        "tls": tls,
        "store": str(paths.store) if gateway.store_requests else None,
        "batches": {  # kept, whatever of requests is
            "store": str(paths.store),
            "files": str(paths.data / "files"),
            "quota_bytes": gateway.files_quota_bytes,
        },
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
    tell: Callable[[str], None] = lambda _line: None,
    parent_fd: int | None = None,
) -> None:
    """Serve until a signal, `skep down`, or the end of the pipe `parent_fd`. Returns when nothing runs any more."""
    make_runtime(paths.runtime)
    make_private(paths.logs)
    try:
        guarded = bool(settings.gateway.api_key or read_keys(keys_path(paths)))
        with only_one(paths.lock, paths.socket), bind(settings.gateway, guarded=guarded) as listener:
            kill_marked(f"{paths.logs}:")  # left by a skep whose keepers were killed with it
            paths.socket.unlink(missing_ok=True)  # left by a process that was killed: the lock says nobody serves it
            hive = build_hive(settings, paths, listener, progress, tell)

            surveys = surveys_for(settings)

            def rebuild(document: dict[str, Any], now: Hive, running: Sequence[Launch]) -> Hive:
                try:
                    wanted = settings_of(document)
                except (KeyError, TypeError) as error:
                    hint = "`skep down && skep up -d` starts the new one"
                    raise UserError(f"these settings are of another version of skep: {error}", hint=hint) from None
                return rebuild_hive(settings, wanted, now, paths, running, surveys)

            with kept_key(paths.state, hive.engine_key):
                asyncio.run(_supervise(hive, listener, notify, parent_fd, rebuild, lambda: embassy_of(settings, paths)))
    finally:
        with contextlib.suppress(OSError):  # not empty: the socket of another one, which is running
            paths.runtime.rmdir()


async def _supervise(
    hive: Hive,
    listener: socket.socket,
    notify: Callable[[Supervisor], None],
    parent_fd: int | None,
    rebuild: Rebuild,
    embassy: Callable[[], Embassy | None],
) -> None:
    abroad = embassy()
    elsewhere, aides = (None, ()) if abroad is None else (abroad.member, (abroad,))
    supervisor = Supervisor(hive, listener, notify, rebuild, elsewhere=elsewhere, aides=aides)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, supervisor.stop)
    if parent_fd is not None:
        loop.add_reader(parent_fd, _parent_gone, loop, parent_fd, supervisor)
    await supervisor.run()


def _parent_gone(loop: asyncio.AbstractEventLoop, parent_fd: int, supervisor: Supervisor) -> None:
    loop.remove_reader(parent_fd)
    supervisor.stop(0.0)


def monitor_lock(paths: Paths) -> Path:
    return paths.state / "monitor.lock"


def probing_turns(paths: Paths) -> Turns:
    """Shared by the loop and by probes that somebody asks for."""
    from skep.monitor.probe_lock import Turns

    return Turns(paths.state / "probing")


def replaced(path: Path) -> Callable[[], bool]:
    """Whether another file stands there by now, or none. Where it cannot be asked, nothing is said."""
    began = path.stat()

    def is_gone() -> bool:
        try:
            now = path.stat()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return (now.st_dev, now.st_ino) != (began.st_dev, began.st_ino)

    return is_gone


def run_monitor(
    wanted: Monitor, paths: Paths, say: Callable[[str], None], *, env: Mapping[str, str], once: bool = False
) -> None:
    """Probe what is due until SIGTERM or Ctrl-C. Raises EngineError where another one does already."""
    from skep.monitor.loop import only_writer
    from skep.store.database import open_store

    with only_writer(monitor_lock(paths)), open_store(paths.store) as store:
        asyncio.run(_watch_over(store, wanted, say, env, probing_turns(paths), once=once))


async def _watch_over(
    store: Store, wanted: Monitor, say: Callable[[str], None], env: Mapping[str, str], turns: Turns, *, once: bool
) -> None:
    """What waits to be told when it ends gets a moment."""
    from skep.monitor.alerts import Watch, free_bytes_of
    from skep.monitor.loop import Loop, prober_with
    from skep.store.series import SeriesStore

    series = SeriesStore(store)
    async with Watch(series, wanted, env=env, log=say, free_bytes=lambda: free_bytes_of(store.path)) as watch:
        is_gone = replaced(store.path)
        watcher = Loop(series, prober_with(env), say=say, watch=watch, turns=turns, is_gone=is_gone)
        watching = asyncio.ensure_future(watcher.run(once=once))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, watching.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await watching
