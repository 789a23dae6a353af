"""What an engine is to skep: a launch turned into a command line, and how to talk to it.

The supervisor starts, probes and stops once for all engines. Also the key that the engines of a
hive want to see: it goes by the environment, or by a file that only the same user can read."""

from __future__ import annotations

import os
import secrets
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from hmac import compare_digest
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from skep.catalog.engines import engine_kinds
from skep.catalog.presets import EngineOptions
from skep.errors import UserError
from skep.files import write_secret
from skep.host.processes import ENGINE_KEY, REPORT_FD
from skep.paths import HOST

EXIT_FINAL = 78  # an engine of ours that ends so would end so again: no restart helps


def fail_for_good(message: str) -> int:
    """Say in an engine of ours why it ends, and return its exit code. The guard reads it."""
    print(f"error: {message}", file=sys.stderr, flush=True)  # noqa: T201
    return EXIT_FINAL


class PlacementRequest(msgspec.Struct, frozen=True):
    """What a replica asks of a cluster: it stands on one node, wherever that much is free."""

    cards: int = 0
    cpus: float = 1.0
    memory_bytes: int = 0
    # names of those it may stand on: a node that comes back has another id; empty: any
    nodes: tuple[str, ...] = ()
    source: str | None = None  # what its weights are pulled by, on a node that does not have them


class Launch(msgspec.Struct, frozen=True):
    """One replica to be started, or one that runs already and is only fronted."""

    name: str
    engine: str
    model: str  # the id that clients use
    weights: Path | None
    slots: int
    context_tokens: int  # per slot
    threads: int
    port: int = 0  # 0: the engine takes a free one and tells which
    extra: tuple[str, ...] = ()
    reserve: int = 0  # of its slots, for interactive requests only
    # requests at once while anything but batch is there; None: all slots
    soft_slots: int | None = None
    url: str | None = None  # it runs there already: nothing is started
    health_path: str | None = None  # None: as the engine has it
    # the environment variable with the key that a server of others wants
    key_env: str | None = None
    # what it is, where the engine's version does not say it: which rig is simulated
    about: str = ""
    # folder, file or hub name for engines that read weights themselves
    checkpoint: str | None = None
    options: EngineOptions = EngineOptions()
    gpus: tuple[int, ...] = ()  # the machine's numbers; empty: the engine sees all
    env: tuple[tuple[str, str], ...] = ()
    binary: str | None = None  # the program to start; None: looked for on PATH
    # bytes it takes of "ram", "gpu0", ...; empty: not known
    room: tuple[tuple[str, int], ...] = ()
    on_demand: bool = False  # loaded when somebody asks for its model
    pinned: bool = False  # stays loaded, whoever needs the room
    # on demand: unloaded after so long without a request; None: stays
    idle_unload_s: float | None = None
    host: str = HOST  # the address that the engine binds
    api_key: str = ""  # that the engine wants to see, where others can reach it
    place: PlacementRequest | None = None  # it stands on some node of a cluster; None: here
    preset: str | None = None  # that it was made from

    def __repr__(self) -> str:
        """Return a line without its key: this text may end in a log."""
        return f"Launch({self.name!r}, {self.engine!r}, {self.model!r})"

    @property
    def authorization(self) -> str:
        key = os.environ.get(self.key_env, "") if self.key_env else self.api_key
        return f"Bearer {key}" if key else ""

    def same_process(self, launch: Launch) -> bool:
        """Return whether what serves this launch can serve the other: they differ only in what the
        gateway is told.
        """
        gateway_fields: dict[str, Any] = {
            "reserve": 0, "soft_slots": None, "health_path": None, "room": (), "on_demand": False,
            "pinned": False, "idle_unload_s": None, "preset": None,
        }  # fmt: skip
        if self.url is not None:
            gateway_fields["slots"] = 0
        return replace(self, **gateway_fields) == replace(launch, **gateway_fields)


class Diagnosis(msgspec.Struct, frozen=True):
    """Why an engine died or refused.

    `change` is the launch that may do better, `changed` says how it differs.
    """

    cause: str  # a clause: "out of GPU memory while CUDA graphs were captured"
    evidence: str | None = None  # the line of its log that says so
    remedy: str | None = None  # what to do, with values: "lower memory_share from 0.92 to 0.87"
    final: bool = False  # the same launch would end in the same way
    change: Launch | None = None
    changed: str | None = None  # "memory_share 0.92 -> 0.87"

    def __str__(self) -> str:
        text = self.cause
        if self.evidence and self.evidence not in self.cause:
            text += f" ({self.evidence})"
        if self.remedy:
            text += f"; {self.remedy}"
        return text


class Engine(ABC):
    """An engine that skep starts. All but `check` is free of I/O."""

    health_path = "/health"
    # how it tells how many slots are busy: "slots" (llama.cpp), "metrics" (vLLM, SGLang), "" not
    # at all
    confirms = ""
    # a slot whose client left is free after so long, whatever the engine says
    release_bound_s = 30.0
    simulated = False  # its speed is made up
    # it takes a free port and tells it on the pipe `REPORT_FD`; else it gets `launch.port`
    reports_address = False

    @abstractmethod
    def version(self) -> str | None: ...

    @abstractmethod
    def check(self, launch: Launch) -> None:
        """Raise what can be known before the start: not installed, impossible options, a flag it
        does not know.
        """

    @abstractmethod
    def argv(self, launch: Launch) -> list[str]: ...

    @abstractmethod
    def environment(self, launch: Launch) -> dict[str, str]:
        """Variables to be set besides those that are there: cards, links, what the launch itself
        names.
        """


class OwnEngine(Engine):
    """An engine of skep's own package: `python -m MODULE --model ... --report-fd N`."""

    module = ""
    reports_address = True
    confirms = "slots"

    def environment(self, launch: Launch) -> dict[str, str]:
        return {**dict(launch.env), **key_variables(launch, ENGINE_KEY)}

    def words(self, *options: object, launch: Launch) -> list[str]:
        """Return the command line of names and values, with what the launch says itself at its
        end.
        """
        return [sys.executable, "-m", self.module, *map(str, options), *launch.extra]


def other_host(launch: Launch) -> list[str]:
    """Return the address to bind where it is not the usual one."""
    if launch.host != HOST:
        return ["--host", launch.host]
    return []


class Fake(OwnEngine):
    """The fake engine of `skep.testing`: for tests and for trying the gateway without a model."""

    module = "skep.testing.fake_engine"
    simulated = True

    def check(self, launch: Launch) -> None:
        pass

    def argv(self, launch: Launch) -> list[str]:
        options = [
            "--model",
            launch.model,
            "--slots",
            launch.slots,
            "--port",
            launch.port,
            *other_host(launch),
        ]
        return self.words(*options, "--report-fd", REPORT_FD, launch=launch)

    def version(self) -> str | None:
        return "fake"


def engine_named(name: str, binary: str | None = None) -> Engine:
    """Return the engine of that name. `binary`: its program, where it is not found by its name."""
    kinds = engine_kinds()
    if name not in kinds:
        hint = f"known: {', '.join(sorted(kinds))}"
        if name == "remote":
            hint = f"a server that runs already is an [[upstream]]; {hint}"
        raise UserError(f"there is no engine `{name}`", hint=hint)
    module, _, kind = kinds[name].adapter.partition(".")
    engine = getattr(import_module(f"skep.engines.{module}"), kind)()
    if binary is not None and hasattr(engine, "binary"):
        engine.binary = binary
    return cast("Engine", engine)


GATEWAY_KEY = "SKEP_API_KEY"
KEY_FILE = "engine-key"  # in the state folder while a hive runs
REFUSED = "this engine requires its deployment's key: send the request to the gateway"
NO_ORIGIN = "none"  # the web pages that an engine gives leave: no page has this origin
ANSWER_S = 2.0


def new_key() -> str:
    """Return a random key.

    It begins with a letter: an option parser would take a dash for a flag.
    """
    return f"skep-{secrets.token_urlsafe(24)}"


def key_variables(launch: Launch, *names: str) -> dict[str, str]:
    if launch.api_key:
        return dict.fromkeys(names, launch.api_key)
    return {}


def key_headers(launch: Launch) -> dict[str, str]:
    if launch.authorization:
        return {"authorization": launch.authorization}
    return {}


def take_key() -> str:
    """Return the key of this process, an engine of ours. What it starts does not inherit it."""
    return os.environ.pop(ENGINE_KEY, "")


def shows_key(key: str, authorization: bytes | None) -> bool:
    """Return whether a request shows the key. Where there is no key, every request does."""
    scheme, _, token = (authorization or b"").partition(b" ")
    return not key or (scheme.lower() == b"bearer" and compare_digest(token.strip(), key.encode()))


@contextmanager
def kept_key(state: Path, key: str) -> Iterator[None]:
    """Keep the hive's key in the state folder while the block runs.

    Without a key, nothing is kept.
    """
    path = state / KEY_FILE
    path.unlink(missing_ok=True)  # left by a hive that was killed
    if key:
        write_secret(path, f"{key}\n")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
