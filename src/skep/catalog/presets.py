"""Presets as values: a recipe somebody published, what it wants, and the figures its author got."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skep.catalog.options import AtLeast1, EngineOptions, UpTo64

METRICS = ("output", "combined", "decode")  # output tokens over wall time; with the prompt's; between first and last
CLOCKS = ("client", "engine")

Text = Annotated[str, Meta(min_length=1)]
AbsolutePath = Annotated[str, Meta(pattern="^/")]
CardNumber = Annotated[int, Meta(ge=0, le=255)]
Context = Annotated[int, Meta(ge=64)]
_Figure = Annotated[float, Meta(gt=0)]
_HIDDEN = Meta(extra={"hidden": True})


class Published(msgspec.Struct, frozen=True):
    """One figure as its author gives it. None: the author does not say."""

    tok_s: _Figure
    metric: Annotated[str, Meta(extra={"one_of": METRICS})]
    concurrency: AtLeast1
    input_tokens: AtLeast1 | None = None
    output_tokens: AtLeast1 | None = None
    clock: Annotated[str | None, Meta(extra={"one_of": CLOCKS})] = None
    engine_version: str | None = None
    ttft_ms: _Figure | None = None
    tpot_ms: _Figure | None = None
    per_task_tok_s: _Figure | None = None
    runs: str | None = None  # how often, with which spread: "16 prompts", "hourly over 7 days, median"
    needs: tuple[str, ...] = ()  # ids of `Need`s without which it does not apply
    note: str | None = None


class Need(msgspec.Struct, frozen=True):
    """What figures rest on beyond flags: an image, a patch, a checkpoint, a driver, a step before the start."""

    id: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    kind: Annotated[str, Meta(extra={"one_of": ("image", "patch", "checkpoint", "driver", "step")})]
    what: Text  # "vllm/vllm-openai:nightly-0735..."
    why: Text
    source: str | None = None


class Mount(msgspec.Struct, frozen=True):
    host: Text  # may begin with ~ or name a variable: "$GENESIS/vllm/_genesis"
    inside: AbsolutePath
    read_only: bool = True


class Container(msgspec.Struct, frozen=True):
    image: Text
    mounts: tuple[Mount, ...] = ()
    shm: Annotated[str, Meta(pattern=r"^[0-9]+(\.[0-9]+)?[kmgKMG]?[bB]?$")] | None = None  # "16gb"
    ipc_host: bool = False
    before: tuple[str, ...] = ()  # shell lines inside, before the engine starts
    checkpoint: AbsolutePath | None = None  # where the weights lie inside


class Preset(msgspec.Struct, frozen=True):
    name: Annotated[str, _HIDDEN]
    title: Text
    engine: str
    model: str  # of the catalogue; of what is not in there, the checkpoint's own name
    checkpoint: Text  # hub name, Ollama tag or GGUF file, exactly the one that was measured
    served_as: Annotated[str, Meta(min_length=1, extra={"default": ""})]  # the model id clients use
    hardware: str  # as `skep plan --gpu` takes it: "2x rtx-3090"
    source: Text
    slots: Annotated[int, Meta(ge=1, le=1024)]
    # per slot; None: the author does not say
    context_tokens: Annotated[Context | None, Meta(extra={"key": "context"})] = None
    replicas: UpTo64 = 1
    link: Annotated[str | None, Meta(extra={"one_of": ("nvlink", "pcie")})] = None  # where it matters
    date: str | None = None
    engine_version: str | None = None
    options: EngineOptions = msgspec.field(default_factory=EngineOptions)
    extra: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    gpus: tuple[CardNumber, ...] = ()
    reserve: Annotated[int, Meta(ge=0)] = 0
    threads: AtLeast1 | None = None  # of a replica; None: as skep divides them
    history: bool = False  # a step on the way to a better one: kept for its figures, not offered
    stand_in: bool = False  # the author names no checkpoint: this one is skep's choice
    container: Container | None = None
    needs: Annotated[tuple[Need, ...], Meta(extra={"key": "need"})] = ()
    published: tuple[Published, ...] = ()
    notes: tuple[str, ...] = ()
    origin: Annotated[str, _HIDDEN] = "shipped"  # or the file of one's own

    @property
    def capacity(self) -> int:
        return self.slots * self.replicas


def own_name(checkpoint: str) -> str:
    """Of a file, a folder or a hub's name: the last part, in lower case."""
    return checkpoint.rstrip("/").rpartition("/")[2].casefold().removesuffix(".gguf")
