"""Presets as values: a recipe somebody published, how it runs the engine (in words that all
engines share; None: as the engine itself has it), the figures its author got, what they rest on
beyond flags, and which fall away without that."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from skep.catalog.gpus import find_device, rig_parts
from skep.catalog.names import table, table_texts
from skep.errors import UserError
from skep.units import shortened

# output tokens over wall time; with the prompt's; between first and last
Metric = Literal["output", "combined", "decode"]

Text = Annotated[str, Meta(min_length=1)]
AbsolutePath = Annotated[str, Meta(pattern="^/")]
CardNumber = Annotated[int, Meta(ge=0, le=255)]
Context = Annotated[int, Meta(ge=64)]
_Figure = Annotated[float, Meta(gt=0)]
_HIDDEN = Meta(extra={"hidden": True})
DRAFT_METHODS = ("mtp", "ngram", "draft", "eagle", "dflash")
UpTo64 = Annotated[int, Meta(ge=1, le=64)]
AtLeast1 = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(gt=0, le=1)]
NO_CARDS = "cpu"  # as `hardware`
HAVE_VARIABLE = "SKEP_HAVE"  # ids of needs that the user answers for: "genesis,tolist"
_VERSION = re.compile(r"\d+(?:\.\d+)*")
_LONGEST_PART = 9  # digits of a part of a version: what has more is none
_LONGEST_SHOWN = 80  # characters of a wrong value


def own_flag(engine: str, extra: Sequence[str]) -> tuple[str, str] | None:
    """Return the first word of `extra` that is skep's own to say, and what to set instead."""
    if extra and engine in table_texts("own_flags.toml"):
        refused_flags = table("own_flags.toml", engine)
    else:
        refused_flags = {}
    for word in extra:
        flag = word.partition("=")[0]
        if flag.startswith("--"):
            flag = flag.replace("_", "-")
        key = refused_flags.get(flag)
        if key is not None:
            return (
                flag,
                f"set `{key}` instead" if key else "skep chooses it; `engine_port` fixes the port",
            )
    return None


class Draft(msgspec.Struct, frozen=True):
    """Speculative decoding: `depth` tokens are drafted a step, by `model` where the method wants
    one.
    """

    method: str  # mtp, ngram, draft, eagle, dflash
    depth: int
    model: str | None = None

    def __str__(self) -> str:
        return f"{self.method}:{self.depth}"


def parse_draft(text: str | None, model: str | None, *, key: str) -> Draft:
    """Parse `mtp:3`: a method and how many tokens it drafts a step."""
    if text is None:
        raise UserError(
            "`draft_model` needs `speculation`", hint='name the method and depth: "draft:4"'
        )
    method, _, depth = text.strip().lower().partition(":")
    if (
        method not in DRAFT_METHODS
        or re.fullmatch(r"[1-9][0-9]?", depth) is None
        or int(depth) > 64
    ):
        hint = f'write it as "mtp:3"; methods: {", ".join(DRAFT_METHODS)}'
        raise UserError(
            f"`{key}` = `{shortened(text, _LONGEST_SHOWN)}` is not understood", hint=hint
        )
    return Draft(method, int(depth), model)


class EngineOptions(msgspec.Struct, frozen=True):
    """`quant`, `dtype` and `kv` are the engine's own words, passed on as they are: awq_marlin,
    float16, fp8_e5m2.
    """

    quant: str | None = None
    dtype: str | None = None
    kv: str | None = None
    tp: UpTo64 = 1
    pp: UpTo64 = 1
    dp: UpTo64 = 1  # replicas inside one engine that share their experts
    ep: bool = False
    memory_share: Share | None = None  # of each card
    graphs: bool | None = None
    chunked_prefill: bool | None = None
    batched_tokens: AtLeast1 | None = None  # prefill tokens a step; of llama.cpp, the micro-batch
    # llama.cpp: tokens that one call of the server holds, taken in micro-batches
    batch: AtLeast1 | None = None
    threads_batch: Annotated[int, Meta(ge=1, le=512)] | None = (
        None  # llama.cpp: CPU threads for prompts
    )
    flash_attention: bool | None = None  # llama.cpp
    # llama.cpp: "unified", one cache for all slots, or "split", one each
    kv_layout: Literal["unified", "split"] | None = None
    prefix_cache: bool | None = None
    draft: Annotated[
        Draft | None,
        Meta(extra={"key": "speculation", "parse": parse_draft, "beside": "draft_model"}),
    ] = None
    # between cards: "nvlink" only over NVLink, "off" not at all
    p2p: Literal["nvlink", "off"] | None = None
    custom_all_reduce: bool | None = None
    # llama.cpp over several cards
    split: Literal["layer", "tensor", "row", "none"] | None = None
    # llama.cpp: so many layers keep their experts in system memory
    cpu_moe: AtLeast1 | None = None
    # GiB of memory, for each replica, that hold KV which has no room on the cards; 0: none
    kv_ram: Annotated[int, Meta(ge=0, le=65536)] | None = None
    # of the model, by card, where cards differ
    card_shares: tuple[Annotated[float, Meta(gt=0)], ...] = ()
    text_only: bool = False  # the vision tower of the checkpoint is not loaded
    trust_remote_code: bool = False
    reasoning_parser: str | None = None
    tool_parser: str | None = None
    chat_template: str | None = None  # a file

    def speed_words(self) -> dict[str, Any]:
        """Return what changes the speed of an engine and it does not tell by itself, where it is
        set.
        """
        given = {
            name: value
            for name, value in self.given.items()
            if name in ("quant", "kv", "tp", "pp", "ep", "graphs")
        }
        return given | ({"spec": str(self.draft)} if self.draft else {})

    @property
    def cards(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def given(self) -> dict[str, Any]:
        """Return the options that differ from the engine's defaults."""
        return {
            name: value
            for name, value in msgspec.structs.asdict(self).items()
            if value != getattr(_USUAL, name)
        }


_USUAL = EngineOptions()


class Published(msgspec.Struct, frozen=True):
    """One figure as its author gives it. None: the author does not say."""

    tok_s: _Figure
    metric: Metric
    concurrency: AtLeast1
    input_tokens: AtLeast1 | None = None
    output_tokens: AtLeast1 | None = None
    clock: Literal["client", "engine"] | None = None
    engine_version: str | None = None
    ttft_ms: _Figure | None = None
    tpot_ms: _Figure | None = None
    per_task_tok_s: _Figure | None = None
    # how often, with which spread: "16 prompts", "hourly over 7 days, median"
    runs: str | None = None
    needs: tuple[str, ...] = ()  # ids of `Need`s without which it does not apply
    note: str | None = None


class Need(msgspec.Struct, frozen=True):
    """What figures rest on beyond flags: an image, a patch, a checkpoint, a driver, a step before
    the start.
    """

    id: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    kind: Literal["image", "patch", "checkpoint", "driver", "step"]
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
    hardware: str  # as `skep plan --gpu` takes it: "2x rtx-3090"
    source: Text
    slots: Annotated[int, Meta(ge=1, le=1024)]
    served_as: Text = ""  # the model id clients use; empty: the model's name
    # per slot; None: the author does not say
    context_tokens: Annotated[Context | None, Meta(extra={"key": "context"})] = None
    replicas: UpTo64 = 1
    link: Literal["nvlink", "pcie"] | None = None  # where it matters
    date: str | None = None
    engine_version: str | None = None
    options: EngineOptions = msgspec.field(default_factory=EngineOptions)
    extra: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    gpus: tuple[CardNumber, ...] = ()
    reserve: Annotated[int, Meta(ge=0)] = 0
    threads: AtLeast1 | None = None  # of a replica; None: as skep divides them
    history: bool = False  # a step on the way to a better one: kept for its figures, not offered
    broken: Text | None = None  # what its author saw where it did not start
    stand_in: bool = False  # the author names no checkpoint: this one is skep's choice
    drafts_fail: Text | None = None  # why its author could not start it with draft tokens
    container: Container | None = None
    needs: Annotated[tuple[Need, ...], Meta(extra={"key": "need"})] = ()
    published: tuple[Published, ...] = ()
    notes: tuple[str, ...] = ()
    origin: Annotated[str, _HIDDEN] = "shipped"  # or the file of one's own

    @property
    def capacity(self) -> int:
        return self.slots * self.replicas


def own_name(checkpoint: str) -> str:
    """Return the last part of a file, a folder or a hub's name, in lower case, without `.gguf`."""
    return checkpoint.rstrip("/").rpartition("/")[2].casefold().removesuffix(".gguf")


class RunEnvironment(msgspec.Struct, frozen=True):
    """Where a preset is about to run. None: not known, which counts as not there."""

    engine_version: str | None = None
    driver_version: str | None = None
    checkpoint: str | None = None  # hub name, folder or file that will be loaded
    env: Mapping[str, str] = {}


def missing_needs(preset: Preset, environment: RunEnvironment) -> list[Need]:
    """Return the needs that are not known to be met, in the preset's order."""
    vouched = {word.strip() for word in environment.env.get(HAVE_VARIABLE, "").split(",")}
    return [
        need
        for need in preset.needs
        if need.id not in vouched and not _is_met(need, preset, environment)
    ]


def figures_lost(preset: Preset, missing: Sequence[Need]) -> list[Published]:
    """Return the published figures that rest on one of these."""
    ids = {need.id for need in missing}
    return [figure for figure in preset.published if ids & set(figure.needs)]


def lost_words(preset: Preset, missing: Sequence[Need]) -> str | None:
    """Return a sentence such as `without genesis, tolist the published 225 tok/s at C=4 does not
    apply`; None where no figure is lost.
    """
    lost = figures_lost(preset, missing)
    if not lost:
        return None
    used = {name for figure in lost for name in figure.needs}
    named = ", ".join(need.id for need in missing if need.id in used)
    best = figure_words(max(lost, key=lambda figure: figure.tok_s))
    return (
        f"without {named} the published {best} does not apply: `skep presets show "
        f"{preset.name}` explains them"
    )


def other_cards(preset: Preset, cards: Sequence[str]) -> str | None:
    """Return a sentence such as `measured on 2x rtx-3090, this machine has 2x rtx-4090`; None
    where the machine has as many of these cards.

    `cards`: driver names.
    """
    needed: Counter[str] = Counter()
    for name, count, _ in (
        rig_parts(preset.hardware.partition(":")[0]) if preset.hardware != NO_CARDS else ()
    ):
        needed[_kind(name)] += count
    counter = Counter(_kind(name) for name in cards)
    if all(counter[kind] >= count for kind, count in needed.items()):
        return None
    if not counter:
        return f"measured on {preset.hardware}, this machine has no GPU"
    host_cards = " + ".join(f"{count}x {kind}" for kind, count in counter.items())
    return f"measured on {preset.hardware}, this machine has {host_cards}"


def version_beside(published: str | None, version: str | None) -> str | None:
    """Return the version in an engine's own words, where it is another than the published one."""
    if published is None or version is None or published.split()[0] in version:
        return None
    return version.rpartition(" ")[2]


def stand_in_words(preset: Preset) -> str | None:
    """Return a warning that another checkpoint may have been measured; None where the author of
    the preset names it.
    """
    if not preset.stand_in:
        return None
    return f"the source does not name its checkpoint: skep uses {preset.checkpoint} in its place"


def best_figure(preset: Preset) -> Published | None:
    return max(preset.published, key=lambda figure: figure.tok_s, default=None)


def figure_words(figure: Published) -> str:
    """Return a figure as `225 tok/s at C=4`, with its kind where that is not plain output."""
    kind = "" if figure.metric == "output" else f" {figure.metric}"
    if figure.tok_s >= 100:
        tok_s = f"{figure.tok_s:,.0f}"
    else:
        tok_s = f"{figure.tok_s:g}"
    return f"{tok_s} tok/s{kind} at C={figure.concurrency}"


def _is_met(need: Need, preset: Preset, environment: RunEnvironment) -> bool:
    # `its author says driver 575 or newer`: the first number is the least.
    if need.kind == "driver":
        min_version = _first_version(need.what)
        driver = _first_version(environment.driver_version or "")
        return min_version is not None and driver is not None and driver >= min_version
    if need.kind == "checkpoint":
        return not preset.stand_in and _same_checkpoint(environment.checkpoint, preset.checkpoint)
    # A nightly's commit, a patch or a step cannot be seen: the user says so.
    version = preset.engine_version
    return (
        need.kind == "image"
        and version is not None
        and (environment.engine_version or "").endswith(f" {version}")
    )


def _first_version(text: str) -> list[int] | None:
    """Return the parts of the first version in a text; None where it has none, or no driver ever
    had it.
    """
    match = _VERSION.search(text)
    parts = match[0].split(".") if match is not None else []
    if not parts or max(map(len, parts)) > _LONGEST_PART:
        return None
    return [int(part) for part in parts]


def _kind(name: str) -> str:
    card = find_device(name)
    return name.strip() if card is None else card.id


def _same_checkpoint(served: str | None, published: str) -> bool:
    """Return whether what is served is the published checkpoint: by hub name, by its folder in the
    hub's cache, or by a folder or file that bears its name.
    """
    if served is None:
        return False
    short = published.rpartition("/")[2].rpartition(":")[2]
    parts = served.rstrip("/").split("/")
    return (
        served == published
        or f"models--{published.replace('/', '--')}" in parts
        or parts[-1] == short
    )
