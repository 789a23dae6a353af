"""Turns settings into replicas on the nodes of a cluster: what each asks of Ray, which nodes it may use, what fits.

Takes a survey and does not import Ray. The replica actor settles address, key, GPUs and weights on its node.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from skep.catalog.gpus import Device
from skep.catalog.names import model_id
from skep.catalog.pullable import find_pullable
from skep.cluster.nodes import (
    LeftOut,
    busy_nodes,
    describe_request,
    has_words,
    host_of,
    kept_and_unplaceable,
    left_out_lines,
    threads_each,
)
from skep.cluster.values import ClusterSurvey, Node, can_keep_actor
from skep.config.settings import Serve, Settings
from skep.deploy.gpus import DEFAULT_SHARES
from skep.deploy.launches import (
    NO_WEIGHTS,
    READ_GGUF,
    PullProgress,
    check_aliases,
    check_gguf,
    check_known_failures,
    check_names,
    checkpoint_of,
    launch_of,
    on_cards,
    remote_launches,
    size_of,
    stem_of,
)
from skep.engines.base import Launch, PlacementRequest, engine_named
from skep.errors import DoesNotFit, EngineError, UserError
from skep.paths import Paths
from skep.planner.rigs import rig_of_host
from skep.units import GIB, parse_bytes
from skep.weights.pull import installed, parse_hub_source, pull

_LOCAL = ("/", "./", "../", "~")


@dataclass(frozen=True, slots=True)
class Weights:
    """Where a model's weights come from. `memory_bytes`: weights and cache in the node's memory; None: unknown."""

    path: Path | None = None
    checkpoint: str | None = None
    source: str | None = None
    memory_bytes: int | None = None


def path_of(serve: Serve) -> str | None:
    """Return the path of the weights on every node, if the model is named by a path."""
    if serve.engine in NO_WEIGHTS or serve.engine == "ollama":
        return None
    named = serve.checkpoint or serve.model
    file = named.endswith(".gguf") and ":" not in named
    path = Path(os.path.expanduser(named))  # noqa: PTH111 - leaves `~nobody` as it is
    if file or named.startswith(_LOCAL) or (serve.engine not in READ_GGUF and path.is_dir()):
        return str(path.absolute())
    return None


def weights_of(serve: Serve, paths: Paths, progress: PullProgress, *, pulls: bool) -> Weights:
    """Return the weights of a model. `pulls`: this machine may serve it, so its file is pulled here."""
    if serve.engine in NO_WEIGHTS:
        return Weights()
    named, shared = serve.checkpoint or serve.model, path_of(serve)
    here = shared is not None and Path(shared).exists()
    if serve.engine not in READ_GGUF:
        return Weights(checkpoint=checkpoint_of(serve) if here or shared is None else shared)
    if shared is not None:
        path = Path(shared)
        return Weights(path, shared, memory_bytes=_held(serve, path) if here else None)
    model = find_pullable(named)
    if model is None and not pulls and parse_hub_source(named) is not None:
        return Weights(checkpoint=named, source=named)
    own = None if pulls or model is None else installed(model.id, paths.cache)
    if pulls or model is None:  # a name that nobody knows is refused here
        own = pull(named, cache_dir=paths.cache, progress=progress).path
    memory = _held(serve, own) if own is not None else model.gguf_bytes if model is not None else None
    return Weights(checkpoint=named, source=named, memory_bytes=memory)


def _held(serve: Serve, path: Path) -> int:
    cache = check_gguf(serve, path)
    return size_of(path) + (cache or 0)


HOST_BYTES_A_CARD = 2 * GIB  # of the node's own memory, for an engine whose weights are on cards
LIGHT_CPUS = 0.1  # for an engine that computes nothing
BUSY_HINT = "`nvidia-smi` there shows who holds it; Ray lends any card of a node that it was started with"


@dataclass(frozen=True, slots=True)
class _ServeCandidates:
    """One [[serve]] with the nodes that could serve it, and why the others could not."""

    serve: Serve
    stem: str  # of its replicas' names
    nodes: tuple[Node, ...]
    left_out: tuple[LeftOut, ...]
    cards: int  # a replica
    weights: Weights
    kept: tuple[Launch, ...] | None = None  # as they stand, where no node could serve it now

    @property
    def threaded(self) -> bool:
        """Whether the CPU does the work."""
        return not self.cards and self.serve.engine not in NO_WEIGHTS

    @property
    def busy(self) -> tuple[Node, ...]:
        """Nodes that get no replica at the start because others use their GPUs."""
        return tuple(one.node for one in self.left_out if one.busy)

    @property
    def missed(self) -> list[LeftOut]:
        """Nodes left out that would be large enough."""
        return [one for one in self.left_out if (one.node.gpus >= self.cards if self.cards else one.node.cpus)]


def place_launches(
    settings: Settings,
    paths: Paths,
    survey: ClusterSurvey,
    progress: PullProgress = lambda _done, _total: None,
    *,
    running: Sequence[Launch] = (),
    avoid: Collection[str] = (),
    tell: Callable[[str], None] = lambda _line: None,
) -> tuple[Launch, ...]:
    """Return all replicas, checked, those of one model alternating between kinds. May pull weights onto this node.

    `running`: replicas that keep their resources; by default those of the survey. `avoid`: nodes that get no new
    replica. `tell` receives a line for each node left out. Raise DoesNotFit with what each node has.
    """
    starting, running = not running, running or survey.standing
    tables = [_table(serve, settings, survey, paths, progress, running, starting=starting) for serve in settings.serve]
    threads = _threads(tables, running, avoid)
    rows = [_launches(table, survey, threads, running) for table in tables]
    launches = _all(settings, rows)
    for table, row in zip(tables, rows, strict=True):
        if row:
            _check(row[0], table.nodes)
    _check_room(tables, rows, survey, running, avoid)
    for line in left_out_lines(one for table in tables for one in table.missed):
        tell(line)
    return launches


def kept_launches(settings: Settings, paths: Paths, running: Sequence[Launch]) -> tuple[Launch, ...] | None:
    """Return all replicas where they run, or None if the settings add, remove or change one."""
    rows = [_kept(serve, settings, paths, running) for serve in settings.serve]
    kept = [row for row in rows if row is not None]
    stand = {launch.name for launch in running if launch.place is not None}
    if len(kept) < len(rows) or {launch.name for row in kept for launch in row} != stand:
        return None
    return _all(settings, kept)


def _all(settings: Settings, rows: Sequence[Sequence[Launch]]) -> tuple[Launch, ...]:
    launches = (*_in_turn(settings.serve, rows), *remote_launches(settings))
    check_names(launches)
    check_aliases(settings.aliases, launches)
    return launches


def shared_paths(settings: Settings) -> tuple[str, ...]:
    """Return the paths that the survey must look for on the nodes: `survey(..., paths=shared_paths(settings))`."""
    found = [path for serve in settings.serve if (path := path_of(serve)) is not None]
    found += [serve.binary for serve in settings.serve if serve.binary and "/" in serve.binary]
    return tuple(dict.fromkeys(found))


# One table


def _table(
    serve: Serve,
    settings: Settings,
    survey: ClusterSurvey,
    paths: Paths,
    progress: PullProgress,
    running: Sequence[Launch],
    *,
    starting: bool,
) -> _ServeCandidates:
    """Return the candidates of one [[serve]]. When `starting`, GPUs in use by others are left out."""
    _refuse(serve)
    engine_named(serve.engine)
    stem = _stem(serve, settings)
    try:
        nodes, left_out = _nodes_for(serve, survey)
        cards = _cards(serve, nodes)
        if cards and starting:
            nodes, busy = _idle(serve, nodes)
            left_out = (*left_out, *busy)
    except (DoesNotFit, EngineError):  # a lost node is no reason to refuse replicas that run
        kept = _kept(serve, settings, paths, running)
        if kept is None:
            raise
        return _ServeCandidates(serve, stem, (), (), 0, Weights(), kept)
    pulls = any(node.id == survey.here and node.gpus >= cards and node.cpus for node in nodes)
    return _ServeCandidates(serve, stem, nodes, left_out, cards, weights_of(serve, paths, progress, pulls=pulls))


def _stem(serve: Serve, settings: Settings) -> str:
    alike = [other.kind for other in settings.serve if model_id(other.model) == model_id(serve.model)]
    return stem_of(serve.model) + (f"-{kind_word(serve.kind)}" if len(alike) > 1 and serve.kind else "")


def _kept(serve: Serve, settings: Settings, paths: Paths, running: Sequence[Launch]) -> tuple[Launch, ...] | None:
    """Return its replicas where they run, or None if one is new or changed and needs a node."""
    _refuse(serve)
    stand = {launch.name: launch for launch in running if launch.place is not None}
    names = [f"{_stem(serve, settings)}-{number}" for number in range(serve.replicas)]
    if not stand.keys() >= set(names):
        return None
    weights = weights_of(serve, paths, lambda _done, _total: None, pulls=False)
    row = []
    for old in map(stand.__getitem__, names):
        assert old.place is not None
        threaded = not old.place.cards and serve.engine not in NO_WEIGHTS
        each = serve.threads or (old.threads if threaded else 0)
        held = old.place.memory_bytes if old.place.cards or serve.room is None else parse_bytes(serve.room)
        new = launch_of(serve, old.name, weights.path, weights.checkpoint, threads=each)
        if not can_keep_actor(old, new):
            return None
        row.append(replace(new, place=replace(old.place, memory_bytes=held)))
    return tuple(row)


def kind_word(kind: str) -> str:
    """Return a kind of node as part of a name: `2x NVIDIA GeForce RTX 3090` as 2x-rtx-3090."""
    words = [word for word in re.split(r"[^a-z0-9.]+", kind.casefold()) if word not in ("", "nvidia", "geforce")]
    return "-".join(words) or "other"


def _refuse(serve: Serve) -> None:
    """Raise UserError for settings that work on one machine only."""
    where = f"`{serve.model}` on a cluster"
    if serve.on_demand:
        hint = "leave `on_demand` and `idle_unload` out"
        raise UserError(f"{where} cannot be loaded on demand", hint=hint)
    if serve.gpus:
        raise UserError(f"{where} takes no `gpus`", hint="leave it out: Ray gives each replica its cards")
    if serve.engine_port:
        raise UserError(f"{where} takes no `engine_port`", hint="leave it out: each node has ports of its own")


def _nodes_for(serve: Serve, survey: ClusterSurvey) -> tuple[tuple[Node, ...], tuple[LeftOut, ...]]:
    """Return the nodes that can run it, whatever is free there, and those that cannot."""
    of_kind = [node for node in survey.nodes if not serve.kind or node.kind == serve.kind]
    if not of_kind:
        kinds = ", ".join(survey.kinds) or "no node at all"
        raise DoesNotFit(
            f"the cluster has no node of the kind {serve.kind} that `{serve.model}` was planned for",
            hint=f"it has {kinds}; `skep up MODEL --cluster ...` plans anew",
        )
    lacks = {node.id: _lack(serve, node) for node in of_kind}
    able = tuple(node for node in of_kind if lacks[node.id] is None)
    left_out = tuple(LeftOut(node, lack) for node in of_kind if (lack := lacks[node.id]) is not None)
    if not able:
        hint = "a node needs skep and the engine in the environment that its Ray was started in"
        raise EngineError(f"no node can serve `{serve.model}`: {'; '.join(map(str, left_out))}", hint=hint)
    return able, left_out


def _lack(serve: Serve, node: Node) -> str | None:
    facts = node.facts
    if facts is None:
        return node.why or "was not asked"
    if serve.binary is not None:
        if not facts.paths.get(serve.binary, True):
            return f"has no {serve.binary}"
    elif serve.engine not in facts.engines:
        return f"has no {serve.engine} installed" if serve.engine != "embedded" else "lacks skep[embedded]"
    path = path_of(serve)
    return f"has no {path}" if path is not None and not facts.paths.get(path, True) else None


def _cards(serve: Serve, nodes: Sequence[Node]) -> int:
    """Return the GPUs of one replica. Without GPUs in the cluster, an engine for one GPU uses the CPU."""
    if not on_cards(serve):
        return 0
    each = serve.options.cards
    most = max(node.gpus for node in nodes)
    if not most and each == 1:
        return 0
    if most < each:
        what = f"a replica of `{serve.model}` wants {each} GPUs on one node, the largest has {most:g}"
        raise DoesNotFit(f"{what}: {has_words(nodes)}", hint="a smaller tp, pp or dp, or a node with more cards")
    return each


def _idle(serve: Serve, nodes: Sequence[Node]) -> tuple[tuple[Node, ...], tuple[LeftOut, ...]]:
    """Return the nodes whose GPUs are free and those whose GPUs others use."""
    busy = busy_nodes(nodes, card_share(serve))
    held = {one.node.id for one in busy}
    idle = tuple(node for node in nodes if node.id not in held)
    if not any(node.gpus for node in idle) and busy:
        raise DoesNotFit(f"no card for `{serve.model}` is free: {'; '.join(map(str, busy))}", hint=BUSY_HINT)
    return idle, busy


def card_share(serve: Serve) -> float:
    """Return the share of each GPU that the engine takes at the start; 0 if it takes what it needs."""
    return serve.options.memory_share or DEFAULT_SHARES.get(serve.engine, 0.0)


# The replicas


def _threads(tables: Sequence[_ServeCandidates], running: Sequence[Launch], avoid: Collection[str]) -> int:
    """Return the CPU threads of each replica without a setting: the free cores divided among the new replicas."""
    open_ones = [table for table in tables if table.threaded and table.serve.threads is None and table.kept is None]
    stand = {launch.name for launch in running}
    coming = 0
    for table in open_ones:
        coming += sum(f"{table.stem}-{number}" not in stand for number in range(table.serve.replicas))
    nodes = {node.id: node for table in open_ones for node in table.nodes if node.name not in avoid}
    return threads_each(coming, list(nodes.values()))


def _launches(
    table: _ServeCandidates, survey: ClusterSurvey, threads: int, running: Sequence[Launch]
) -> Sequence[Launch]:
    if table.kept is not None:
        return table.kept
    serve, weights = table.serve, table.weights
    known = {} if serve.threads else {launch.name: launch.threads for launch in running}
    able = {node.id for node in (*table.nodes, *table.busy)}
    nodes = tuple(node.name for node in survey.nodes if node.id in able) if len(able) < len(survey.nodes) else ()
    shunned = tuple(node.name for node in table.busy)
    made = []
    for number in range(serve.replicas):
        name = f"{table.stem}-{number}"
        each = serve.threads or (known.get(name, threads) if table.threaded else 0)
        place = replace(_asked(table, each), kind=serve.kind, nodes=nodes, shunned=shunned, source=weights.source)
        made.append(replace(launch_of(serve, name, weights.path, weights.checkpoint, threads=each), place=place))
    return made


def placement_request(serve: Serve) -> PlacementRequest:
    """Return what a replica on GPUs needs, on any node."""
    cards = serve.options.cards
    return PlacementRequest(
        cards=cards, cpus=float(max(cards, serve.threads or 0)), memory_bytes=HOST_BYTES_A_CARD * cards
    )


def _asked(table: _ServeCandidates, threads: int) -> PlacementRequest:
    """Return what a replica needs; on the CPU its threads and the memory of its weights."""
    if table.cards:
        return placement_request(table.serve)
    return PlacementRequest(cpus=float(threads) or LIGHT_CPUS, memory_bytes=_memory(table))


def _memory(table: _ServeCandidates) -> int:
    if table.serve.room is not None:
        return parse_bytes(table.serve.room)
    return table.weights.memory_bytes or 0


def _in_turn(serves: Sequence[Serve], rows: Sequence[Sequence[Launch]]) -> list[Launch]:
    """Return the replicas model by model, alternating between the kinds that serve one model."""
    models = dict.fromkeys(model_id(serve.model) for serve in serves)
    ordered: list[Launch] = []
    for model in models:
        own = [row for serve, row in zip(serves, rows, strict=True) if model_id(serve.model) == model]
        for number in range(max(map(len, own))):
            ordered += [row[number] for row in own if number < len(row)]
    return ordered


# Checks


def _check(launch: Launch, nodes: Sequence[Node]) -> None:
    """Raise for contradicting options and unsuitable GPUs. The replica actor checks the rest."""
    refusals = getattr(engine_named(launch.engine, launch.binary), "refusals", None)
    for what, instead in refusals(launch) if refusals is not None else ():
        raise UserError(f"{launch.engine}: {what}", hint=instead)
    check_known_failures(launch, _devices(nodes, launch.place.cards if launch.place is not None else 0))


def _devices(nodes: Sequence[Node], cards: int) -> tuple[Device, ...]:
    """Return the GPUs of a replica if all nodes that could hold it are of one kind."""
    able = [node for node in nodes if node.facts is not None and len(node.facts.cards) >= cards]
    if not cards or len({node.kind for node in able}) != 1:
        return ()
    try:
        return rig_of_host(host_of(able[0])).rig.cards[:cards]
    except UserError:
        return ()  # not in the catalogue: nothing is known about them


def _check_room(
    tables: Sequence[_ServeCandidates],
    rows: Sequence[Sequence[Launch]],
    survey: ClusterSurvey,
    running: Sequence[Launch],
    avoid: Collection[str],
) -> None:
    stays, lost = kept_and_unplaceable([launch for row in rows for launch in row], running, survey, avoid)
    for table, row in zip(tables, rows, strict=True):
        short = sum(launch.name in lost for launch in row)
        if short:
            raise _too_small(table, row, short, avoid, standing=sum(one.name in stays - lost for one in row))


def _too_small(
    table: _ServeCandidates, row: Sequence[Launch], short: int, avoid: Collection[str], *, standing: int
) -> DoesNotFit:
    place = row[0].place
    assert place is not None
    several = f"{len(row)} replicas of" if len(row) > 1 else "a replica of"
    each = " each" if len(row) > 1 else ""
    more = len(row) - short - standing
    room = f"there is room for {more}" if more else "there is no room"
    if standing:
        room = f"{standing} of them run, {room}{' more' if more else ''}"
    what = f"{several} `{table.serve.model}` want{'s' if len(row) == 1 else ''} {describe_request(place)}{each}, {room}"
    drained = [LeftOut(node, "is drained") for node in table.nodes if node.name in avoid]
    lacking = "".join(f"; {one}" for one in (*drained, *table.left_out))
    hint = "fewer --replicas, or another node: `skep cluster join ADDRESS`"
    if table.threaded:
        hint = "--threads N asks for fewer CPUs; " + hint
    elif table.cards > 1:
        hint = "a smaller tp, " + hint
    had = has_words([node for node in table.nodes if node.name not in avoid]) or "no node may be used"
    return DoesNotFit(f"{what}: {had}{lacking}", hint=hint)
