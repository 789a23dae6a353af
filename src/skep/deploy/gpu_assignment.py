"""Which replica gets which GPUs, and whether all that run at once fit on them and in memory.

Knows cards by their number and bytes. What an engine does with them is not known here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from skep.catalog.engines import kind_of
from skep.catalog.gpus import Device, HostFacts
from skep.engines.base import Launch
from skep.errors import DoesNotFit, UserError
from skep.host.facts import (
    GpuCard,
    NvidiaReport,
    count_busy_cores,
    read_gpu_memory,
    read_host,
    visible_gpus,
)
from skep.units import format_bytes

RAM = "ram"
MOST_LISTED = 8  # replicas, in an error
SHARE_STEP = 0.01
LEAST_SHARE = 0.5  # of a card that is left: below it the weights hardly fit, and it is not offered
# llama.cpp then keeps part in memory
NOT_ON_CARDS = {
    "-ngl", "--gpu-layers", "--n-gpu-layers", "-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe",
    "-nkvo", "--no-kv-offload", "-ot", "--override-tensor",
}  # fmt: skip


class LocalMachine(msgspec.Struct, frozen=True):
    """The machine that replicas are placed on."""

    cores: int
    cards: tuple[GpuCard, ...] = ()
    room: tuple[tuple[str, int], ...] = ()
    devices: tuple[Device, ...] = ()  # what the cards are, in the same order; empty: not known
    busy: int = 0  # of the cores, with the work of others


def read_machine() -> LocalMachine:
    """Read cores, memory and the cards that CUDA_VISIBLE_DEVICES leaves visible."""
    cards = visible_gpus(read_gpu_memory(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    host = read_host() if cards else read_host(NvidiaReport())
    room = machine_resources(cards, host.memory_bytes)
    busy = count_busy_cores(host.cpu_cores)
    return LocalMachine(host.cpu_cores, cards, room, _devices(host, cards), busy)


def _devices(host: HostFacts, cards: Sequence[GpuCard]) -> tuple[Device, ...]:
    """Return the cards as the catalogue has them; none where one is not in it: no failure is
    predicted then.
    """
    from skep.config.rigs import rig_of_host

    numbers = [gpu.index for gpu in host.gpus]
    if not cards or not {card.index for card in cards} <= set(numbers):
        return ()
    try:
        devices = rig_of_host(host).rig.cards
    except UserError:
        return ()
    return tuple(devices[numbers.index(card.index)] for card in cards)


def assign_cards(
    replicas: int,
    cards_each: int,
    gpus: Sequence[int],
    cards: Sequence[GpuCard],
    taken: Iterable[int] = (),
) -> list[tuple[int, ...]]:
    """Return the cards of each replica: those named, in order; else those free of earlier models
    first.
    """
    present = [card.index for card in cards]
    needed = replicas * cards_each
    if gpus:
        _check_named(gpus, present, replicas, cards_each)
        if len(gpus) != needed:
            return [tuple(gpus)] * replicas
        return _in_groups(gpus, replicas, cards_each)
    if not present:
        if cards_each > 1:
            raise DoesNotFit(
                f"a replica needs {cards_each} GPUs, this machine has none",
                hint="leave tp, pp and dp out, or run it on the machine with the cards",
            )
        return [()] * replicas
    if needed > len(present):
        replica_words = f"{replicas} replicas"
        if cards_each > 1:
            replica_words += f" of {cards_each}"
        raise DoesNotFit(
            f"{replica_words} need {needed} GPUs, this machine has {len(present)}",
            hint="lower --replicas or --tp, or name cards to share with `gpus` (--gpus)",
        )
    free = [index for index in present if index not in set(taken)]
    return _in_groups(free if len(free) >= needed else present, replicas, cards_each)


def _in_groups(gpus: Sequence[int], replicas: int, cards_each: int) -> list[tuple[int, ...]]:
    return [tuple(gpus[n * cards_each : (n + 1) * cards_each]) for n in range(replicas)]


def _check_named(
    gpus: Sequence[int], present: Sequence[int], replicas: int, cards_each: int
) -> None:
    """Raise where named cards are not there, are named twice, or are not as many as it takes."""
    missing = next((gpu for gpu in gpus if gpu not in present), None)
    if missing is not None:
        machine_words = "this machine has none"
        if present:
            machine_words = f"this machine has {', '.join(map(str, present))}"
        raise UserError(
            f"there is no GPU {missing}: {machine_words}",
            hint="`skep doctor` lists them with their numbers",
        )
    if len(set(gpus)) < len(gpus):
        raise UserError(
            f"`gpus` (--gpus) = {list(gpus)} names a card twice", hint="name each card once"
        )
    needed = replicas * cards_each
    if len(gpus) not in (cards_each, needed):
        replica_words = str(cards_each)
        if replicas > 1:
            replica_words = f"{replicas} replicas of {cards_each}"
        raise UserError(
            f"`gpus` (--gpus) = {list(gpus)} names {len(gpus)} cards for {replica_words}",
            hint=f"name {needed}, or {cards_each} for all replicas to share",
        )


def room_of(
    launch: Launch, cards: Sequence[GpuCard], *, weights: int | None, cache: int | None
) -> tuple[tuple[str, int], ...]:
    """Return the bytes that a launch takes, by resource; empty where it cannot be told.

    `weights` and `cache` are of the whole model.
    """
    totals = {card.index: card.total_bytes for card in cards}
    usual_share = kind_of(launch.engine).memory_share
    if usual_share is not None and launch.gpus:
        share = launch.options.memory_share or usual_share
        card_totals = [(gpu, totals.get(gpu)) for gpu in launch.gpus]
        return tuple(
            (f"gpu{gpu}", int(total * share)) for gpu, total in card_totals if total is not None
        )
    if weights is None or (cards and not launch.gpus and not kind_of(launch.engine).part_of_skep):
        return ()  # it divides itself over all cards
    if NOT_ON_CARDS & {word.partition("=")[0] for word in launch.extra}:
        return ()  # part of it stays in memory, and how much is the engine's to know
    return spread(weights + (cache or 0), launch)


def _takes_share(launch: Launch) -> bool:
    """Return whether its engine takes a share of each card, whatever the model needs."""
    return kind_of(launch.engine).memory_share is not None


def spread(room: int, launch: Launch) -> tuple[tuple[str, int], ...]:
    """Return a number of bytes as equal shares of the launch's cards, or as memory where it has
    none.
    """
    if not launch.gpus:
        return ((RAM, room),)
    return tuple((f"gpu{gpu}", room // len(launch.gpus)) for gpu in launch.gpus)


def machine_resources(cards: Sequence[GpuCard], ram: int | None) -> tuple[tuple[str, int], ...]:
    """Return what the machine has of each resource, as far as it is known."""
    totals = [(card.name, card.total_bytes) for card in cards] + [(RAM, ram)]
    return tuple((name, total) for name, total in totals if total is not None)


def _resource_words(resource: str) -> str:
    if resource == RAM:
        return "memory"
    return f"GPU {resource.removeprefix('gpu')}"


def check_together(launches: Sequence[Launch], has: Mapping[str, int]) -> None:
    """Raise where those that run at the same time do not fit together, such as two engines that
    each profile one card for themselves.
    """
    always = [launch for launch in launches if not launch.on_demand]
    for resource, total in has.items():
        takers = [
            (launch, dict(launch.room)[resource])
            for launch in always
            if resource in dict(launch.room)
        ]
        if sum(room for _, room in takers) <= total:
            continue
        resource_words = _resource_words(resource)
        if len(takers) == 1:
            launch, room = takers[0]
            needs = f"`{launch.name}` needs {format_bytes(room)} of {resource_words}"
            raise DoesNotFit(
                f"{needs}, which has {format_bytes(total)}",
                hint="use fewer slots, a shorter context or a smaller quantization",
            )
        listed = ", ".join(
            f"{launch.name} {format_bytes(room)}" for launch, room in takers[:MOST_LISTED]
        )
        if len(takers) > MOST_LISTED:
            listed += f" and {len(takers) - MOST_LISTED} more"
        where = f"{resource_words} of {format_bytes(total)}"
        raise DoesNotFit(
            f"{len(takers)} replicas do not fit together on {where}: {listed}",
            hint=_apart(takers, resource),
        )


def check_pinned(launches: Sequence[Launch], max_loaded: int | None) -> None:
    """Raise where no model can be loaded on demand beside those that always are."""
    pinned = sorted({launch.model for launch in launches if launch.pinned})
    needed = len(pinned) + any(launch.on_demand for launch in launches)
    if max_loaded is not None and needed > max_loaded:
        text = (
            f"max_loaded = {max_loaded} is too low for {', '.join(pinned)} (pinned) and one model "
            "on demand"
        )
        raise UserError(text, hint=f"set max_loaded = {needed}, or pin fewer")


def check_free(launches: Sequence[Launch], cards: Sequence[GpuCard]) -> None:
    """Raise where a card has less free now than its engines take.

    For a start, not for a reload.
    """
    for card in cards:
        takers = [
            launch
            for launch in launches
            if not launch.on_demand and card.name in dict(launch.room)
        ]
        if card.total_bytes is None or card.used_bytes is None or not takers:
            continue
        free = card.total_bytes - card.used_bytes
        needed = sum(dict(launch.room)[card.name] for launch in takers)
        if needed <= free:
            continue
        first = takers[0]
        hint = (
            "`nvidia-smi` shows which process uses it; end it, or choose other cards with "
            "`gpus` (--gpus)"
        )
        is_alone = _takes_share(first) and len(takers) == 1
        if is_alone and free / card.total_bytes >= LEAST_SHARE:
            share = int((free / card.total_bytes - SHARE_STEP) / SHARE_STEP) * SHARE_STEP
            hint += f"; or set memory_share (--memory-share) to {share:.2f}"
        free_words = f"{format_bytes(free)} of {format_bytes(card.total_bytes)} are free"
        raise DoesNotFit(
            f"GPU {card.index} is busy: {free_words}, `{first.name}` needs {format_bytes(needed)}",
            hint=hint,
        )


def _apart(takers: Sequence[tuple[Launch, int]], resource: str) -> str:
    if resource == RAM:
        return "serve fewer at once: `on_demand = true` loads a model when a request asks for it"
    if all(_takes_share(launch) for launch, _ in takers):
        share = int(0.95 / len(takers) / SHARE_STEP) * SHARE_STEP
        return (
            f"give each its own card with `gpus`; memory_share = {share:.2f} for each, if the "
            "weights fit in it"
        )
    return "give each its own card with `gpus`, or load them `on_demand`"
