"""What a model's name stands for on a cluster: for each kind of node its own plan, as many replicas as fit."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from skep.catalog.presets import NO_CARDS, Preset
from skep.cluster import nodes as cluster_nodes
from skep.cluster.nodes import ClusterSurvey, LeftOut, Node, describe_request, has_words, host_of, left_out_lines
from skep.cluster.placement import BUSY_HINT, MORE_ROOM_HINT, card_share, placement_request
from skep.config.presets import find_preset, presets_folder
from skep.config.rigs import rig_of_host
from skep.config.settings import Serve
from skep.deploy import resolve as deploy
from skep.deploy.resolve import FOR_PLANS, PlannedServe, Say, ServeRequest
from skep.errors import DoesNotFit, EngineError, SkepError, UserError
from skep.paths import Paths


def serves_for(wanted: ServeRequest, survey: ClusterSurvey, paths: Paths, say: Say) -> tuple[Serve, ...]:
    """Return one table for each kind of node that serves the model."""
    deploy.check_engine(wanted)
    preset = find_preset(wanted.model, presets_folder(paths))
    if preset is not None:
        return (replace(_of_preset(preset, wanted, survey, say), gpus=()),)
    with_cards = [node for node in survey.nodes if node.cards]
    if deploy.is_for_embedded(wanted, llama_cards=any("llamacpp" in node.engines for node in with_cards)):
        able = sum("embedded" in node.engines and node.cpus >= 1 for node in survey.nodes)
        serve = Serve(model=wanted.model, checkpoint=wanted.checkpoint, replicas=wanted.replicas or max(1, able))
        slots, context = wanted.slots or serve.slots, wanted.context or serve.context_tokens
        return (replace(serve, slots=slots, context_tokens=context),)
    if not with_cards or wanted.engine not in (None, *FOR_PLANS) or deploy.is_unplanned(wanted, say):
        return (replace(deploy.as_told(wanted, paths, cards=bool(with_cards), where="in the cluster"), gpus=()),)
    if deploy.is_missing(wanted.model):  # a plan reads the configuration
        hint = "mount the shared folder here too, or name the engine: --engine vllm starts it without a plan"
        raise UserError(f"`{wanted.model}` is not on this machine, so skep cannot plan it", hint=hint)
    return _of_plans(wanted, survey, paths, say)


def _of_preset(preset: Preset, wanted: ServeRequest, survey: ClusterSurvey, say: Say) -> Serve:
    serve = deploy.preset_serve(preset, wanted)
    cards = serve.options.cards if preset.hardware != NO_CARDS else 0
    able = [node for node in survey.nodes if node.facts is not None and node.gpus >= cards]
    if not able:
        hint = "`skep cluster status` shows what the nodes have; --simulate tries a rig"
        what = f"the preset `{preset.name}` needs {preset.hardware}, no node of the cluster has {cards} GPUs"
        raise DoesNotFit(f"{what}: {has_words(survey.nodes)}", hint=hint)
    best = next((node for node in able if preset.engine in node.engines), able[0])
    for line in deploy.about_preset(preset, serve, host_of(best), best.engines.get(preset.engine)):
        say(line)
    return serve


# Plans, kind by kind


class NodeKind(msgspec.Struct, frozen=True):
    kind: str
    nodes: tuple[Node, ...]  # that have the engine, and cards that nobody else holds
    busy: tuple[LeftOut, ...]  # that have the engine, and no such cards
    best: PlannedServe
    fits: int  # replicas, now


def _of_plans(wanted: ServeRequest, survey: ClusterSurvey, paths: Paths, say: Say) -> tuple[Serve, ...]:
    found = _best_kinds(wanted, survey, paths, say)
    room = sum(one.fits for one in found)
    if room < (wanted.replicas or 1):
        raise _no_room(wanted, found, room)
    left, serves, lines = wanted.replicas or room, [], []
    unused: list[LeftOut] = []
    for one in found:
        count = min(one.fits, left)
        left -= count
        if count:
            names = ", ".join(node.name for node in one.nodes[:4]) + (", ..." if len(one.nodes) > 4 else "")
            lines.append(f"planned for {one.kind} ({names}): {count} x {one.best}")
            serves.append(replace(one.best.serve, replicas=count, gpus=(), kind=one.kind))
        else:
            unused += one.busy
    warnings = [f"warning: {line}" for line in left_out_lines(unused)]  # of the others `skep.cluster.placement` tells
    for line in (*warnings, *lines):
        say(line)
    return tuple(serves)


def _best_kinds(wanted: ServeRequest, survey: ClusterSurvey, paths: Paths, say: Say) -> list[NodeKind]:
    """Return the fastest first. Those that cannot serve it are left out, with a word."""
    kinds = [(kind, nodes) for kind, nodes in survey.kinds.items() if nodes[0].cards]
    kinds.sort(key=lambda pair: sum(card.memory_bytes or 0 for card in pair[1][0].cards))
    count = sum(len(nodes) for _, nodes in kinds)
    each = replace(
        wanted,
        replicas=-(-wanted.replicas // count) if wanted.replicas else None,
        concurrency=-(-wanted.concurrency // count) if wanted.concurrency else None,
    )
    found, failed = _plan_kinds(each, kinds, paths, say)
    if len({one.best.plan.setup.quant.id for one in found}) > 1 and wanted.quant is None:
        # One checkpoint has one format: the one that the smallest nodes can hold.
        least = min((one.best.plan.setup.quant for one in found), key=lambda quant: quant.bits)
        found, failed = _plan_kinds(replace(each, quant=least.id), kinds, paths, say)
    if not found:
        raise _fits_nowhere(wanted.model, failed)
    for kind, error in failed:
        say(f"warning: {kind} is left out: {error.message}")
    return sorted(found, key=lambda one: one.best.tok_s / max(1, one.best.plan.setup.layout.replicas), reverse=True)


def _plan_kinds(
    wanted: ServeRequest, kinds: Sequence[tuple[str, Sequence[Node]]], paths: Paths, tell: Say
) -> tuple[list[NodeKind], list[tuple[str, SkepError]]]:
    said: set[str] = set()

    def say(line: str) -> None:
        if line not in said:
            said.add(line)
            tell(line)

    found: list[NodeKind] = []
    failed: list[tuple[str, SkepError]] = []
    for kind, nodes in kinds:
        try:
            best = _plan_kind(wanted, nodes, paths, say)
            serve = best.serve
            able = [node for node in nodes if node.facts is not None and (serve.binary or serve.engine in node.engines)]
            if not able:
                names = ", ".join(node.name for node in nodes)
                hint = "install it in the environment that their Ray was started in, or name another --engine"
                raise EngineError(f"{serve.engine} is not installed on {names}", hint=hint)
            idle, busy = cluster_nodes.split_busy(able, card_share(serve))
            if not idle:
                raise DoesNotFit("; ".join(map(str, busy)), hint=BUSY_HINT)
        except (DoesNotFit, EngineError) as error:
            failed.append((kind, error))
            continue
        found.append(NodeKind(kind, idle, busy, best, cluster_nodes.capacity(placement_request(serve), idle)))
    return found, failed


def _plan_kind(wanted: ServeRequest, nodes: Sequence[Node], paths: Paths, say: Say) -> PlannedServe:
    """With so many replicas a node where that can be, else as the planner likes it; by an engine that is there."""
    try:
        rig = rig_of_host(host_of(nodes[0]), wanted.link)
    except UserError as error:  # a card unlike all of the catalogue
        raise EngineError(error.message, hint=f"--engine vllm serves {wanted.model} without a plan") from None
    rig = replace(rig, rig=replace(rig.rig, title=nodes[0].kind))
    try:
        best = deploy.planned(wanted, paths, rig, say=say)
    except UserError:
        if wanted.replicas is None:
            raise
        wanted = replace(wanted, replicas=None)
        best = deploy.planned(wanted, paths, rig, say=say)
    there = {name for node in nodes for name in node.engines}
    other = next((name for name in FOR_PLANS if name in there), None)
    if wanted.engine is not None or wanted.binary or best.serve.engine in there or other is None:
        return best
    return deploy.planned(replace(wanted, engine=other), paths, rig, say=say)


def _fits_nowhere(name: str, failed: Sequence[tuple[str, SkepError]]) -> SkepError:
    """Which came nearest gives the hint: one that has the room and lacks the engine, else the largest."""
    best = next((error for _, error in failed if isinstance(error, EngineError)), failed[-1][1])
    told = [error.message if other in error.message else f"{other}: {error.message}" for other, error in failed]
    every = "; ".join(told)
    what = f"no kind of node can serve `{name}`: {every}" if len(failed) > 1 else every
    return type(best)(what, hint=best.hint)


def _no_room(wanted: ServeRequest, found: Sequence[NodeKind], room: int) -> DoesNotFit:
    asked = wanted.replicas or 1
    each = "; ".join(f"on {one.kind} each needs {describe_request(placement_request(one.best.serve))}" for one in found)
    several = f"{asked} replicas" if asked > 1 else "a replica"
    had = has_words([node for one in found for node in one.nodes])
    held = "".join(f"; {node}" for one in found for node in one.busy)
    what = f"{several} of `{wanted.model}`, there is room for {room}: {each}; {had}{held}"
    return DoesNotFit(what, hint=MORE_ROOM_HINT)
