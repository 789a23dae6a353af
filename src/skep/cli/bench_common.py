"""Shared by the bench commands: the key, the endpoint, lengths in tokens, and a clean end on Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tomllib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from skep.bench.endpoint import Endpoint, find_endpoint
from skep.bench.tasks import Shape, TaskMaker, Workload
from skep.bench.tokens_per_char import calibrate_on
from skep.cli.output import note
from skep.errors import SkepError, UserError, first_of
from skep.host.power import PowerMeter, open_meter
from skep.paths import LOOPBACK, user_paths
from skep.supervisor.control import local_key
from skep.units import parse_seconds
from skep.workload.prompts import Size

T = TypeVar("T")
MAX_CONCURRENCY = 4096
NEEDS_LENGTHS = ("conversation", "shared-prefix", "prefill")


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """The endpoint as given on the command line."""

    url: str
    model: str | None = None
    key_env: str | None = None
    api: str = "openai"

    def key(self) -> str | None:
        """Return the key in the given variable, else skep's own key for a server on this machine."""
        if self.key_env is None:
            return local_key(self.url, os.environ, user_paths(os.environ))
        value = os.environ.get(self.key_env)
        if not value:
            raise UserError(f"--key-env `{self.key_env}` is not set", hint=f"export {self.key_env}=... first")
        return value

    async def find(self) -> Endpoint:
        if self.api not in ("openai", "ollama"):
            raise UserError(f"--api `{self.api}` is unknown", hint="choose openai or ollama")
        return await find_endpoint(self.url, self.model, key=self.key(), api=self.api)


class Interrupted(SkepError):
    exit_code = 130

    def __init__(self) -> None:
        super().__init__("interrupted", hint="what was measured is kept: `skep runs` lists it")


def run_measuring(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Ctrl-C, TERM and a closed terminal end it alike: what was measured is kept, and said."""

    async def run() -> T:
        task = asyncio.current_task()
        assert task is not None
        for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(sign) is not signal.SIG_IGN:  # as `nohup` sets it: the work is to go on
                asyncio.get_running_loop().add_signal_handler(sign, task.cancel)
        return await work()

    import uvloop

    try:
        return uvloop.run(run())
    except asyncio.CancelledError:
        raise Interrupted from None
    except BaseExceptionGroup as group:
        raise first_of(group) from None


async def maker_for(workload: Workload, endpoint: Endpoint, *, salt: str = "") -> TaskMaker:
    """Lengths are measured on the engine where the workload is given in its tokens."""
    if workload.prompt_tokens is None and workload.shape not in NEEDS_LENGTHS:
        return TaskMaker(workload, salt=salt)
    found = await calibrate_on(endpoint, workload.prompt_tokens, workload.seed)
    miss = f", within {100 * found.worst:.1f} % on {found.samples} samples" if found.worst is not None else ""
    template = f", {found.overhead_tokens:.0f} of the chat template" if found.overhead_tokens >= 1 else ""
    note(f"{found.chars_per_token:.2f} characters a token{template}{miss}")
    return TaskMaker(workload, found, salt=salt)


def meter_for(endpoint: Endpoint) -> PowerMeter | None:
    """This machine's GPUs, if they are the ones that serve."""
    return open_meter() if endpoint.origin.host in LOOPBACK else None


def workload_of(
    *,
    shape: str,
    size: str,
    prompt_tokens: int | None,
    max_tokens: int,
    fixed_output: bool,
    seed: int | None,
    turns: int = 4,
    think: str = "2s",
    temperature: float = 0.0,
) -> Workload:
    if shape not in get_args(Shape):
        raise UserError(f"--shape `{shape}` is unknown", hint=f"choose one of {', '.join(get_args(Shape))}")
    if size not in get_args(Size):
        raise UserError(f"--size `{size}` is unknown", hint=f"choose one of {', '.join(get_args(Size))}")
    return Workload(
        shape=shape,  # type: ignore[arg-type]
        size=size,  # type: ignore[arg-type]
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        fixed_output=fixed_output,
        temperature=temperature,
        seed=random.SystemRandom().randrange(2**31) if seed is None else seed,
        turns=turns,
        think_s=parse_seconds(think),
    )


def text_of(path: Path) -> str:
    """Read a file that the user named."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"`{path}` cannot be read: {error.strerror}", hint="check the path") from None
    except UnicodeDecodeError:
        raise UserError(f"`{path}` is not text in UTF-8", hint="check that it is the right file") from None


def toml_of(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text_of(path))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"`{path}` is not TOML: {error}", hint="docs/bench.md has an example") from None


def positive_seconds(text: str, option: str, example: str) -> float:
    seconds = parse_seconds(text)
    if seconds <= 0:
        raise UserError(f"{option} `{text}` leaves no time", hint=f"write it as {example}")
    return seconds
