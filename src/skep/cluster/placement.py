"""From a model's name to replicas on nodes: the plan for a kind of node, what each replica asks of
Ray, what fits.

Works on a survey of the cluster, without Ray. Ray places what comes out of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

import msgspec
from msgspec.structs import replace

from skep.catalog.gpus import Device
from skep.catalog.models import find_pullable
from skep.catalog.presets import NO_CARDS, Preset
from skep.cluster import nodes as cluster_nodes
from skep.cluster.nodes import (
    ClusterSurvey,
    LeftOut,
    Node,
    assign_nodes,
    busy_cards,
    can_keep_actor,
    describe_request,
    has_words,
    host_of,
)
from skep.config.presets import find_preset, presets_folder
from skep.config.rigs import rig_of_host
from skep.config.settings import Serve, Settings
from skep.deploy import launches as deploy
from skep.deploy import resolve
from skep.deploy.launches import NO_WEIGHTS, READ_GGUF, PullProgress
from skep.deploy.resolve import FOR_PLANS, PlannedServe, Say, ServeRequest
from skep.engines.base import DEFAULT_SHARES, Launch, PlacementRequest, engine_named
from skep.errors import DoesNotFit, EngineError, SkepError, UserError
from skep.paths import Paths
from skep.units import GIB, parse_bytes
from skep.weights.hub import parse_hub_source
from skep.weights.pull import installed, pull

HOST_BYTES_A_CARD = 2 * GIB  # of the node's own memory, for an engine whose weights are on cards
LIGHT_CPUS = 0.1  # for an engine that computes nothing
BUSY_HINT = (
    "`nvidia-smi` there shows which process uses it; Ray may assign any card that it was "
    "started with"
)
ANYWHERE = PlacementRequest()
# the file and the name of a model's weights, and with their source the memory that they and a
# cache take on a node
Weights = tuple[Path | None, str | None, PlacementRequest]
MORE_ROOM_HINT = "lower --replicas, or add a node with `skep cluster join ADDRESS`"
_LOCAL = ("/", "./", "../", "~")
_ONE_MACHINE_ONLY = {  # by setting: what is said of it, and the hint
    "on_demand": ("cannot be loaded on demand", "leave `on_demand` and `idle_unload` out"),
    "gpus": ("takes no `gpus`", "leave `gpus` (--gpus) out: Ray gives each replica its cards"),
    "engine_port": (
        "takes no `engine_port`",
        "leave `engine_port` (--engine-port) out: each node has its own ports",
    ),
}


class _ServeCandidates(msgspec.Struct, frozen=True):
    """One [[serve]] with the nodes that could serve it, and why the others could not."""

    serve: Serve
    nodes: tuple[Node, ...]
    left_out: tuple[LeftOut, ...]
    cards: int  # a replica
    launches: tuple[Launch, ...] = ()


def place_launches(
    settings: Settings,
    paths: Paths,
    survey: Callable[[], ClusterSurvey],
    progress: PullProgress = lambda _done, _total: None,
    *,
    running: Sequence[Launch] | None = None,
    tell: Callable[[str], None] = lambda _line: None,
) -> tuple[Launch, ...]:
    """Return all replicas, checked. May pull weights onto this node.

    `running`: the replicas at a change; None: at a start, the survey's. A table whose replicas all
    run as they should needs no node: without another one, the nodes are not asked."""
    starting = running is None
    standing = survey().standing if running is None else running
    launches: list[Launch] = []
    tables: list[_ServeCandidates] = []
    for serve in settings.serve:
        for name, (what, hint) in _ONE_MACHINE_ONLY.items():
            if getattr(serve, name):
                raise UserError(f"`{serve.model}` on a cluster {what}", hint=hint)
        engine_named(serve.engine)
        names = tuple(f"{deploy.stem_of(serve)}-{number}" for number in range(serve.replicas))
        kept = _kept(serve, names, paths, standing)
        if kept is None:
            table = _candidates(serve, survey(), starting=starting)
            pulls = any(
                node.id == survey().here and node.gpus >= table.cards and node.cpus
                for node in table.nodes
            )
            weights = weights_of(serve, paths, progress, pulls=pulls)
            kept = _launches(table, names, weights, survey(), standing)
            _check(kept[0], table.nodes)
            tables.append(replace(table, launches=kept))
        launches += kept
    launches += deploy.remote_launches(settings)
    deploy.check_names(launches)
    deploy.check_aliases(settings.aliases, launches)
    if tables:
        _check_room(tables, launches, standing, survey().nodes)
    for table in tables:
        for one in table.left_out:
            if one.node.gpus >= table.cards if table.cards else one.node.cpus:
                tell(f"{one.node.name} is left out: it {one.why}")
    return tuple(launches)


def _check_room(
    tables: Sequence[_ServeCandidates],
    launches: Sequence[Launch],
    standing: Sequence[Launch],
    nodes: Sequence[Node],
) -> None:
    """Raise DoesNotFit where what is new has no room.

    Where something goes or changes too, what is new waits for it.
    """
    before = {launch.name: launch for launch in standing if launch.place is not None}
    stay = {
        launch.name
        for launch in launches
        if launch.name in before and can_keep_actor(before[launch.name], launch)
    }
    if stay != before.keys():
        return
    new = {
        launch.name: launch.place
        for launch in launches
        if launch.name not in stay and launch.place is not None
    }
    placed = dict(zip(new, assign_nodes(list(new.values()), nodes), strict=True))
    for table in tables:
        row = table.launches
        place = table.launches[0].place
        if place is not None and any(placed.get(one.name, "") is None for one in row):
            runs = sum(one.name in stay for one in row)
            asked = f"{len(row)} replicas of `{table.serve.model}`" + (
                f", of which {runs} run" if runs else ""
            )
            fits = sum(placed.get(one.name) is not None for one in row)
            each = f"each needs {describe_request(place)}"
            if table.cards > 1:
                fewer = "lower --tp, "
            elif table.cards:
                fewer = ""
            else:
                fewer = "--threads N asks for fewer CPUs; "
            raise _no_room(asked, fits, each, table.nodes, table.left_out, fewer)


def _no_room(
    asked: str,
    room: int,
    each: str,
    nodes: Sequence[Node],
    left_out: Sequence[LeftOut],
    fewer: str = "",
) -> DoesNotFit:
    had = "; ".join((has_words(nodes), *map(str, left_out)))
    return DoesNotFit(
        f"{asked}, there is room for {room}: {each}; {had}", hint=fewer + MORE_ROOM_HINT
    )


# The weights


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
    """Return the weights of a model.

    `pulls`: this machine may serve it, so its file is pulled here.
    """
    if serve.engine in NO_WEIGHTS:
        return None, None, ANYWHERE
    named = serve.checkpoint or serve.model
    shared = path_of(serve)
    here = shared is not None and Path(shared).exists()
    if serve.engine not in READ_GGUF:
        return None, deploy.weights_named(serve) if here or shared is None else shared, ANYWHERE
    if shared is not None:
        path = Path(shared)
        return path, shared, PlacementRequest(memory_bytes=_held(serve, path) if here else 0)
    model = find_pullable(named)
    if model is None and not pulls and parse_hub_source(named) is not None:
        return None, named, PlacementRequest(source=named)
    if pulls or model is None:  # a name that nobody knows is refused here
        own: Path | None = pull(named, cache_dir=paths.cache, progress=progress).path
    else:
        own = installed(model.id, paths.cache)
    if own is not None:
        memory = _held(serve, own)
    else:
        memory = model.gguf_bytes if model is not None else 0
    return None, named, PlacementRequest(source=named, memory_bytes=memory)


def _held(serve: Serve, path: Path) -> int:
    return (deploy.check_gguf(serve, path) or 0) + deploy.size_of(path)


# The nodes of one table


def _candidates(serve: Serve, survey: ClusterSurvey, *, starting: bool) -> _ServeCandidates:
    """Return the nodes that can run it, whatever is free there.

    When `starting`, GPUs in use by others are left out.
    """
    of_kind = [node for node in survey.nodes if not serve.kind or node.kind == serve.kind]
    if not of_kind:
        what = (
            f"the cluster has no node of the kind {serve.kind} that `{serve.model}` was planned "
            "for"
        )
        kinds = ", ".join(survey.kinds) or "no node at all"
        raise DoesNotFit(what, hint=f"it has {kinds}; `skep up MODEL --cluster ...` plans again")
    lacks = [(node, _lack(serve, node)) for node in of_kind]
    left_out = tuple(LeftOut(node, lack) for node, lack in lacks if lack is not None)
    nodes = tuple(node for node, lack in lacks if lack is None)
    if not nodes:
        hint = "a node needs skep and the engine in the environment that its Ray was started in"
        raise EngineError(
            f"no node can serve `{serve.model}`: {'; '.join(map(str, left_out))}", hint=hint
        )
    cards = _cards(serve, nodes)
    if cards and starting:
        nodes, busy = split_busy(nodes, card_share(serve))
        if busy and not any(node.gpus for node in nodes):
            raise DoesNotFit(
                f"no card for `{serve.model}` is free: {'; '.join(map(str, busy))}", hint=BUSY_HINT
            )
        left_out += busy
    return _ServeCandidates(serve, nodes, left_out, cards)


def split_busy(
    nodes: Iterable[Node], share: float
) -> tuple[tuple[Node, ...], tuple[LeftOut, ...]]:
    """Return the nodes whose GPUs are free, `share` of each, and those whose GPUs others use."""
    words = [(node, busy_cards(node, share)) for node in nodes]
    busy = tuple(LeftOut(node, why) for node, why in words if why is not None)
    return tuple(node for node, why in words if why is None), busy


def _kept(
    serve: Serve, names: Sequence[str], paths: Paths, standing: Sequence[Launch]
) -> tuple[Launch, ...] | None:
    """Return its replicas where they run, or None if one is new or changed and needs a node."""
    stand = {launch.name: launch for launch in standing if launch.place is not None}
    if not stand.keys() >= set(names):
        return None
    path, checkpoint, _ = weights_of(serve, paths, lambda _done, _total: None, pulls=False)
    row = []
    for old in map(stand.__getitem__, names):
        assert old.place is not None
        each = serve.threads or (
            0 if old.place.cards or serve.engine in NO_WEIGHTS else old.threads
        )
        new = deploy.launch_of(serve, old.name, path, checkpoint, threads=each)
        if not can_keep_actor(old, new):
            return None
        row.append(replace(new, place=old.place))
    return tuple(row)


def _lack(serve: Serve, node: Node) -> str | None:
    if node.facts is None:
        return node.why or "was not queried"
    if serve.binary is None and serve.engine not in node.engines:
        return f"has no {serve.engine} installed"
    return None


def _cards(serve: Serve, nodes: Sequence[Node]) -> int:
    """Return the GPUs of one replica.

    Without GPUs in the cluster, an engine for one GPU uses the CPU.
    """
    cards = serve.options.cards
    most = max(node.gpus for node in nodes)
    if not deploy.on_cards(serve) or (not most and cards == 1):
        return 0
    if most < cards:
        what = (
            f"a replica of `{serve.model}` needs {cards} GPUs on one node, "
            f"the largest has {most:g}"
        )
        raise DoesNotFit(
            f"{what}: {has_words(nodes)}",
            hint="lower tp, pp or dp (--tp, --pp), or add a larger node",
        )
    return cards


def card_share(serve: Serve) -> float:
    """Return the share of each GPU that the engine takes at the start; 0 if it takes what it
    needs.
    """
    return serve.options.memory_share or DEFAULT_SHARES.get(serve.engine, 0.0)


# The replicas


def _threads(serve: Serve, nodes: Sequence[Node]) -> int:
    """Return the CPU threads of each replica: as many as replicas spread evenly have cores, on the
    smallest node.
    """
    cores = [
        min(int(node.cpus), node.facts.cores)
        for node in nodes
        if node.facts is not None and node.cpus >= 1
    ]
    if cores:
        return max(1, min(cores) // -(-serve.replicas // len(cores)))
    return 1


def _launches(
    table: _ServeCandidates,
    names: Sequence[str],
    weights: Weights,
    survey: ClusterSurvey,
    standing: Sequence[Launch],
) -> tuple[Launch, ...]:
    serve, (path, checkpoint, held) = table.serve, weights
    if serve.threads:
        known = {}
    else:
        known = {launch.name: launch.threads for launch in standing}
    threaded = not table.cards and serve.engine not in NO_WEIGHTS  # the CPU does the work
    if len(table.nodes) < len(survey.nodes):
        nodes = tuple(node.name for node in table.nodes)
    else:
        nodes = ()
    where = replace(held, nodes=nodes)
    if serve.room is not None:
        where = replace(where, memory_bytes=parse_bytes(serve.room))
    made = []
    for name in names:
        each = serve.threads or (known.get(name, _threads(serve, table.nodes)) if threaded else 0)
        if table.cards:
            place = placement_request(serve, where)
        else:
            place = replace(where, cpus=float(each) or LIGHT_CPUS)
        made.append(
            replace(deploy.launch_of(serve, name, path, checkpoint, threads=each), place=place)
        )
    return tuple(made)


def placement_request(serve: Serve, where: PlacementRequest = ANYWHERE) -> PlacementRequest:
    """Return what a replica on GPUs needs; `where`: on which nodes."""
    cards = serve.options.cards
    cpus = float(max(cards, serve.threads or 0))
    return replace(where, cards=cards, cpus=cpus, memory_bytes=HOST_BYTES_A_CARD * cards)


def _check(launch: Launch, nodes: Sequence[Node]) -> None:
    """Raise for contradicting options and unsuitable GPUs. The replica actor checks the rest."""
    refusals = getattr(engine_named(launch.engine, launch.binary), "refusals", None)
    for what, instead in refusals(launch) if refusals is not None else ():
        raise UserError(f"{launch.engine}: {what}", hint=instead)
    cards = launch.place.cards if launch.place is not None else 0
    able = [node for node in nodes if node.facts is not None and len(node.cards) >= cards]
    devices: tuple[Device, ...] = ()
    if (
        cards and len({node.kind for node in able}) == 1
    ):  # else it is not known which cards it gets
        try:
            devices = rig_of_host(host_of(able[0])).rig.cards[:cards]
        except UserError:  # not in the catalogue: nothing is known about them
            devices = ()
    deploy.check_known_failures(launch, devices)


# What a model's name stands for on a cluster: the plan for the kind of node that serves it fastest


def serve_on(wanted: ServeRequest, survey: ClusterSurvey, paths: Paths, say: Say) -> Serve:
    resolve.check_engine(wanted)
    preset = find_preset(wanted.model, presets_folder(paths))
    if preset is not None:
        return replace(_of_preset(preset, wanted, survey, say), gpus=())
    with_cards = [node for node in survey.nodes if node.cards]
    if resolve.is_for_embedded(
        wanted, llama_cards=any("llamacpp" in node.engines for node in with_cards)
    ):
        able = sum("embedded" in node.engines and node.cpus >= 1 for node in survey.nodes)
        serve = Serve(
            model=wanted.model,
            checkpoint=wanted.checkpoint,
            replicas=wanted.replicas or max(1, able),
        )
        slots = wanted.slots or serve.slots
        context = wanted.context or serve.context_tokens
        return replace(serve, slots=slots, context_tokens=context)
    if (
        not with_cards
        or wanted.engine not in (None, *FOR_PLANS)
        or resolve.is_unplanned(wanted, say)
    ):
        return replace(
            resolve.as_told(wanted, paths, cards=bool(with_cards), where="in the cluster"), gpus=()
        )
    if resolve.is_missing(wanted.model):  # a plan reads the configuration
        hint = (
            "mount the shared folder here too, or name the engine: --engine vllm starts it "
            "without a plan"
        )
        raise UserError(
            f"`{wanted.model}` is not on this machine, so skep cannot plan it", hint=hint
        )
    return _planned(wanted, survey, paths, say)


def _of_preset(preset: Preset, wanted: ServeRequest, survey: ClusterSurvey, say: Say) -> Serve:
    serve = resolve.preset_serve(preset, wanted)
    cards = serve.options.cards if preset.hardware != NO_CARDS else 0
    able = [node for node in survey.nodes if node.facts is not None and node.gpus >= cards]
    if not able:
        hint = "`skep cluster status` shows what the nodes have; --simulate tries a rig"
        what = (
            f"the preset `{preset.name}` needs {preset.hardware}, no node of the cluster has "
            f"{cards} GPUs"
        )
        raise DoesNotFit(f"{what}: {has_words(survey.nodes)}", hint=hint)
    best = next((node for node in able if preset.engine in node.engines), able[0])
    for line in resolve.about_preset(
        preset, serve, host_of(best), best.engines.get(preset.engine)
    ):
        say(line)
    return serve


class NodeKind(msgspec.Struct, frozen=True):
    kind: str
    nodes: tuple[Node, ...]  # that have the engine, and cards that nobody else holds
    busy: tuple[LeftOut, ...]  # that have the engine, and no such cards
    best: PlannedServe
    fits: int  # replicas, now

    def rank(self, wanted: int | None) -> tuple[bool, float]:
        """Return whether so many replicas fit, and the speed of those that do."""
        if wanted is None:
            count = self.fits
        else:
            count = min(wanted, self.fits)
        return self.fits >= (wanted or 1), count * self.best.tok_s / max(
            1, self.best.plan.setup.layout.replicas
        )


def _planned(wanted: ServeRequest, survey: ClusterSurvey, paths: Paths, say: Say) -> Serve:
    """Plan for each kind of node, and take the one that gives the most tokens a second.

    The others are left out.
    """
    node_kinds: list[NodeKind] = []
    failed: list[tuple[str, SkepError]] = []
    for kind, nodes in survey.kinds.items():
        if nodes[0].cards:
            try:
                node_kinds.append(_plan_kind(kind, wanted, nodes, paths, cache(say)))
            except (DoesNotFit, EngineError) as error:
                failed.append((kind, error))
    if not node_kinds:
        raise _fits_nowhere(wanted.model, failed)
    best = max(node_kinds, key=lambda one: one.rank(wanted.replicas))
    if best.fits < (wanted.replicas or 1):
        each = f"on {best.kind} each needs {describe_request(placement_request(best.best.serve))}"
        raise _no_room(
            f"{wanted.replicas or 1} replicas of `{wanted.model}`",
            best.fits,
            each,
            best.nodes,
            best.busy,
        )
    others = [(kind, error.message) for kind, error in failed]
    slower = "it would be slower, and one deployment serves on one kind of node"
    others += [(one.kind, slower) for one in node_kinds if one is not best]
    for kind, why in others:
        say(f"warning: {kind} is left out: {why}")
    count = wanted.replicas or best.fits
    names = ", ".join(node.name for node in best.nodes[:4]) + (
        ", ..." if len(best.nodes) > 4 else ""
    )
    say(f"planned for {best.kind} ({names}): {count} x {best.best}")
    return replace(best.best.serve, replicas=count, gpus=(), kind=best.kind)


def _plan_kind(
    kind: str, wanted: ServeRequest, nodes: Sequence[Node], paths: Paths, say: Say
) -> NodeKind:
    """With so many replicas a node where that can be, else as the planner likes it; by an engine
    that is there.
    """
    try:
        rig = rig_of_host(host_of(nodes[0]), wanted.link)
    except UserError as error:  # a card unlike all of the catalogue
        raise EngineError(
            error.message, hint=f"--engine vllm serves {wanted.model} without a plan"
        ) from None
    rig = replace(rig, rig=replace(rig.rig, title=kind))
    there = [name for name in FOR_PLANS if any(name in node.engines for node in nodes)]
    each = replace(
        wanted,
        engine=",".join(there) if wanted.engine is None and there else wanted.engine,
        replicas=-(-wanted.replicas // len(nodes)) if wanted.replicas else None,
        concurrency=-(-wanted.concurrency // len(nodes)) if wanted.concurrency else None,
    )
    try:
        best = resolve.planned(each, paths, rig, say=say)
    except UserError:
        if wanted.replicas is None:
            raise
        best = resolve.planned(replace(each, replicas=None), paths, rig, say=say)
    serve = best.serve
    able = [
        node
        for node in nodes
        if node.facts is not None and (serve.binary or serve.engine in node.engines)
    ]
    if not able:
        names = ", ".join(node.name for node in nodes)
        hint = (
            "install it in the environment that their Ray was started in, or name another --engine"
        )
        raise EngineError(f"{serve.engine} is not installed on {names}", hint=hint)
    idle, busy = split_busy(able, card_share(serve))
    if not idle:
        raise DoesNotFit("; ".join(map(str, busy)), hint=BUSY_HINT)
    return NodeKind(kind, idle, busy, best, cluster_nodes.capacity(placement_request(serve), idle))


def _fits_nowhere(name: str, failed: Sequence[tuple[str, SkepError]]) -> SkepError:
    """Which came nearest gives the hint: one that has the room and lacks the engine, else the
    largest.
    """
    best = next((error for _, error in failed if isinstance(error, EngineError)), failed[-1][1])
    told = [
        error.message if other in error.message else f"{other}: {error.message}"
        for other, error in failed
    ]
    every = "; ".join(told)
    if len(failed) > 1:
        what = f"no kind of node can serve `{name}`: {every}"
    else:
        what = every
    return type(best)(what, hint=best.hint)
