"""Which cards each replica gets, what it takes of them, and whether all fit together. Pure: cards and launches in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from skep.engines.base import Launch
from skep.errors import DoesNotFit, UserError
from skep.host.nvidia import GpuCard
from skep.units import format_bytes

RAM = "ram"
MOST_LISTED = 8  # replicas, in an error
DEFAULT_SHARES = {"vllm": 0.9, "sglang": 0.88}  # of a card, where nobody says: the engines' own
SHARE_STEP = 0.01
LEAST_SHARE = 0.5  # of a card that is left: below it the weights hardly fit, and it is not offered
NOT_ON_CARDS = {"-ngl", "--gpu-layers", "--n-gpu-layers", "-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe", "-nkvo",
                "--no-kv-offload", "-ot", "--override-tensor"}  # fmt: skip  # llama.cpp then keeps part in memory


def assign_cards(
    replicas: int, each: int, gpus: Sequence[int], cards: Sequence[GpuCard], taken: Iterable[int] = ()
) -> list[tuple[int, ...]]:
    """Return the cards of each replica: those named, in order; else those free of earlier models first."""
    present, wanted = [card.index for card in cards], replicas * each
    if gpus:
        missing = next((gpu for gpu in gpus if gpu not in present), None)
        if missing is not None:
            here = f"this machine has {', '.join(map(str, present))}" if present else "this machine has none"
            raise UserError(f"there is no GPU {missing}: {here}", hint="`skep doctor` lists them with their numbers")
        if len(set(gpus)) < len(gpus):
            raise UserError(f"`gpus` (--gpus) = {list(gpus)} names a card twice", hint="name each card once")
        if len(gpus) not in (each, wanted):
            each_words = f"{replicas} replicas of {each}" if replicas > 1 else str(each)
            raise UserError(f"`gpus` (--gpus) = {list(gpus)} names {len(gpus)} cards for {each_words}",
                            hint=f"name {wanted}, or {each} for all replicas to share")  # fmt: skip
        return [tuple(gpus[n * each : (n + 1) * each]) if len(gpus) == wanted else tuple(gpus) for n in range(replicas)]
    if not present:
        if each > 1:
            raise DoesNotFit(f"a replica needs {each} GPUs, this machine has none",
                             hint="leave tp, pp and dp out, or run it on the machine with the cards")  # fmt: skip
        return [()] * replicas
    if wanted > len(present):
        what = f"{replicas} replicas of {each}" if each > 1 else f"{replicas} replicas"
        raise DoesNotFit(f"{what} need {wanted} GPUs, this machine has {len(present)}",
                         hint="lower --replicas or --tp, or name cards to share with `gpus` (--gpus)")  # fmt: skip
    free = [index for index in present if index not in set(taken)]
    pool = free if len(free) >= wanted else present
    return [tuple(pool[n * each : (n + 1) * each]) for n in range(replicas)]


def room_of(
    launch: Launch, cards: Sequence[GpuCard], *, weights: int | None, cache: int | None
) -> tuple[tuple[str, int], ...]:
    """What a launch takes, by resource; empty where it cannot be told. `weights` and `cache` are of the whole model."""
    totals = {card.index: card.total_bytes for card in cards}
    if launch.engine in DEFAULT_SHARES and launch.gpus:
        share = launch.options.memory_share or DEFAULT_SHARES[launch.engine]
        known = [(gpu, totals.get(gpu)) for gpu in launch.gpus]
        return tuple((f"gpu{gpu}", int(total * share)) for gpu, total in known if total is not None)
    if weights is None or (cards and not launch.gpus and launch.engine != "embedded"):
        return ()  # it divides itself over all cards
    if NOT_ON_CARDS & {word.partition("=")[0] for word in launch.extra}:
        return ()  # part of it stays in memory, and how much is the engine's to know
    return spread(weights + (cache or 0), launch)


def spread(room: int, launch: Launch) -> tuple[tuple[str, int], ...]:
    """Return a number the user gave, over the cards of the launch."""
    if not launch.gpus:
        return ((RAM, room),)
    return tuple((f"gpu{gpu}", room // len(launch.gpus)) for gpu in launch.gpus)


def machine_resources(cards: Sequence[GpuCard], ram: int | None) -> tuple[tuple[str, int], ...]:
    """Return what the machine has of each resource, as far as it is known."""
    own = [(card.name, card.total_bytes) for card in cards] + [(RAM, ram)]
    return tuple((name, total) for name, total in own if total is not None)


def _resource_words(resource: str) -> str:
    return "memory" if resource == RAM else f"GPU {resource.removeprefix('gpu')}"


def check_together(launches: Sequence[Launch], has: Mapping[str, int]) -> None:
    """Those that run at the same time must fit together: two engines that profile one card for themselves do not."""
    always = [launch for launch in launches if not launch.on_demand]
    for resource, total in has.items():
        takers = [(launch, dict(launch.room)[resource]) for launch in always if resource in dict(launch.room)]
        if sum(room for _, room in takers) <= total:
            continue
        what = _resource_words(resource)
        if len(takers) == 1:
            launch, room = takers[0]
            raise DoesNotFit(f"`{launch.name}` needs {format_bytes(room)} of {what}, which has {format_bytes(total)}",
                             hint="use fewer slots, a shorter context or a smaller quantization")  # fmt: skip
        listed = ", ".join(f"{launch.name} {format_bytes(room)}" for launch, room in takers[:MOST_LISTED])
        listed += f" and {len(takers) - MOST_LISTED} more" if len(takers) > MOST_LISTED else ""
        raise DoesNotFit(f"{len(takers)} replicas do not fit together on {what} of {format_bytes(total)}: {listed}",
                         hint=_apart(takers, resource))  # fmt: skip


def check_on_demand(launches: Sequence[Launch], has: Mapping[str, int], max_loaded: int | None) -> None:
    """Whether each model that is loaded on demand could ever be, beside those that never make room."""
    pinned = [launch for launch in launches if launch.pinned]
    kept = sorted({launch.model for launch in pinned})
    wanted = sorted({launch.model for launch in launches if launch.on_demand})
    if max_loaded is not None and len(kept) + bool(wanted) > max_loaded:
        besides = f" and {wanted[0]} on demand" if wanted else ""
        raise UserError(f"max_loaded = {max_loaded} is too low for {', '.join(kept)} (pinned){besides}",
                        hint=f"set max_loaded = {len(kept) + bool(wanted)}, or pin fewer")  # fmt: skip
    for model in wanted:
        for resource, total in has.items():
            own = sum(dict(launch.room).get(resource, 0) for launch in launches if launch.model == model)
            others = sum(dict(launch.room).get(resource, 0) for launch in pinned)
            if own and own + others > total:
                beside = f", {format_bytes(others)} of it for pinned models" if others else ""
                wants = f"it needs {format_bytes(own)} of {_resource_words(resource)}, which has {format_bytes(total)}"
                hint = "use fewer slots, a shorter context or a smaller quantization, or pin less"
                raise DoesNotFit(f"`{model}` can never be loaded: {wants}{beside}", hint=hint)


def check_free(launches: Sequence[Launch], cards: Sequence[GpuCard]) -> None:
    """Whether the cards have free now what the first of their engines wants. For a start, not for a reload."""
    for card in cards:
        takers = [launch for launch in launches if not launch.on_demand and card.name in dict(launch.room)]
        if card.total_bytes is None or card.used_bytes is None or not takers:
            continue
        free = card.total_bytes - card.used_bytes
        wanted = sum(dict(launch.room)[card.name] for launch in takers)
        if wanted <= free:
            continue
        first = takers[0]
        hint = "`nvidia-smi` shows which process uses it; end it, or choose other cards with `gpus` (--gpus)"
        if first.engine in DEFAULT_SHARES and len(takers) == 1 and free / card.total_bytes >= LEAST_SHARE:
            share = int((free / card.total_bytes - SHARE_STEP) / SHARE_STEP) * SHARE_STEP
            hint += f"; or set memory_share (--memory-share) to {share:.2f}"
        left = f"{format_bytes(free)} of {format_bytes(card.total_bytes)} are free"
        raise DoesNotFit(f"GPU {card.index} is busy: {left}, `{first.name}` needs {format_bytes(wanted)}", hint=hint)


def _apart(takers: Sequence[tuple[Launch, int]], resource: str) -> str:
    if resource == RAM:
        return "serve fewer at once: `on_demand = true` loads a model when a request asks for it"
    if all(launch.engine in DEFAULT_SHARES for launch, _ in takers):
        share = int(0.95 / len(takers) / SHARE_STEP) * SHARE_STEP
        return f"give each its own card with `gpus`; memory_share = {share:.2f} for each, if the weights fit in it"
    return "give each its own card with `gpus`, or load them `on_demand`"
