"""Presets as values: a recipe somebody published, what it wants, and the figures its author got."""

from __future__ import annotations

from dataclasses import dataclass, field

from skep.catalog.options import EngineOptions

METRICS = ("output", "combined", "decode")  # output tokens over wall time; with the prompt's; between first and last
CLOCKS = ("client", "engine")


@dataclass(frozen=True, slots=True)
class Published:
    """One figure as its author gives it. None: the author does not say."""

    tok_s: float
    metric: str
    concurrency: int
    input_tokens: int | None = None
    output_tokens: int | None = None
    clock: str | None = None  # of CLOCKS
    engine_version: str | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    per_task_tok_s: float | None = None
    runs: str | None = None  # how often, with which spread: "16 prompts", "hourly over 7 days, median"
    needs: tuple[str, ...] = ()  # ids of `Need`s without which it does not apply
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Need:
    """What figures rest on beyond flags: an image, a patch, a checkpoint, a driver, a step before the start."""

    id: str
    kind: str  # image, patch, checkpoint, driver, step
    what: str  # "vllm/vllm-openai:nightly-0735..."
    why: str
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Mount:
    host: str  # may begin with ~ or name a variable: "$GENESIS/vllm/_genesis"
    inside: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Container:
    image: str
    mounts: tuple[Mount, ...] = ()
    shm: str | None = None  # "16gb"
    ipc_host: bool = False
    before: tuple[str, ...] = ()  # shell lines inside, before the engine starts
    checkpoint: str | None = None  # where the weights lie inside


@dataclass(frozen=True, slots=True)
class Preset:
    name: str
    title: str
    engine: str
    model: str  # of the catalogue; of what is not in there, the checkpoint's own name
    checkpoint: str  # hub name, Ollama tag or GGUF file, exactly the one that was measured
    served_as: str  # the model id clients use
    hardware: str  # as `skep plan --gpu` takes it: "2x rtx-3090"
    source: str
    slots: int
    context_tokens: int | None = None  # per slot; None: the author does not say
    replicas: int = 1
    link: str | None = None  # nvlink or pcie, where it matters
    date: str | None = None
    engine_version: str | None = None
    options: EngineOptions = field(default_factory=EngineOptions)
    extra: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    gpus: tuple[int, ...] = ()
    reserve: int = 0
    threads: int | None = None  # of a replica; None: as skep divides them
    stand_in: bool = False  # the author names no checkpoint: this one is skep's choice
    container: Container | None = None
    needs: tuple[Need, ...] = ()
    published: tuple[Published, ...] = ()
    notes: tuple[str, ...] = ()
    origin: str = "shipped"  # or the file of one's own

    @property
    def capacity(self) -> int:
        return self.slots * self.replicas


def own_name(checkpoint: str) -> str:
    """Of a file, a folder or a hub's name: the last part, in lower case."""
    return checkpoint.rstrip("/").rpartition("/")[2].casefold().removesuffix(".gguf")
