"""From a model's name to replicas on nodes: the plan for a kind of node, what each replica
requests of Ray, and what fits.

Works on a survey of the cluster and knows nothing of Ray, which places the replicas.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec
from msgspec.structs import replace

from skep.catalog.engines import EMBEDDED, gguf_engine, kind_of, planned_engines
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
from skep.deploy.launches import PullProgress
from skep.deploy.resolve import PlannedServe, Say, ServeRequest
from skep.engines.base import Launch, PlacementRequest, engine_named
from skep.errors import DoesNotFit, EngineError, SkepError, UserError
from skep.paths import Paths
from skep.units import GIB, parse_bytes
from skep.weights.hub import parse_hub_source
from skep.weights.pull import installed, pull

HOST_BYTES_A_CARD = 2 * GIB  # of the node's own memory, for an engine whose weights are on GPUs
LIGHT_CPUS = 0.1  # for an engine that computes nothing
BUSY_HINT = (
    "`nvidia-smi` there shows which process uses it; Ray may assign any card that it was "
    "started with"
)
ANYWHERE = PlacementRequest()
# The file and the name of a model's weights, and their source with the memory that they and a
# cache take on a node.
Weights = tuple[Path | None, str | None, PlacementRequest]
MORE_ROOM_HINT = "lower --replicas, or add a node with `skep cluster join ADDRESS`"
_LOCAL = ("/", "./", "../", "~")
_ONE_MACHINE_ONLY = {  # by setting: why it is refused, and the hint
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
    run as they should needs no node: where all tables are so, there is no survey.
    """
    starting = running is None
    standing = survey().standing if running is None else running
    launches: list[Launch] = []
    tables: list[_ServeCandidates] = []
    for serve in settings.serve:
        for name, (refusal, hint) in _ONE_MACHINE_ONLY.items():
            if getattr(serve, name):
                raise UserError(f"`{serve.model}` on a cluster {refusal}", hint=hint)
        engine_named(serve.engine)
        names = tuple(f"{deploy.stem_of(serve)}-{number}" for number in range(serve.replicas))
        replicas = _running_replicas(serve, names, paths, standing)
        if replicas is None:
            table = _candidates(serve, survey(), starting=starting)
            pulls = any(
                node.id == survey().here and node.gpus >= table.cards and node.cpus
                for node in table.nodes
            )
            weights = weights_of(serve, paths, progress, pulls=pulls)
            replicas = _launches(table, names, weights, survey(), standing)
            _check(replicas[0], table.nodes)
            tables.append(replace(table, launches=replicas))
        launches += replicas
    launches += deploy.remote_launches(settings)
    deploy.check_names(launches)
    deploy.check_aliases(settings.aliases, launches)
    if tables:
        _check_room(tables, launches, standing, survey().nodes)
    for table in tables:
        for left_out in table.left_out:
            node = left_out.node
            would_do = node.gpus >= table.cards if table.cards else node.cpus > 0
            if would_do:
                tell(f"{node.name} is left out: it {left_out.why}")
    return tuple(launches)


def _check_room(
    tables: Sequence[_ServeCandidates],
    launches: Sequence[Launch],
    standing: Sequence[Launch],
    nodes: Sequence[Node],
) -> None:
    """Raise DoesNotFit where new replicas have no room.

    Where others are removed or changed too, the new ones wait for their room instead.
    """
    before = {launch.name: launch for launch in standing if launch.place is not None}
    unchanged = {
        launch.name
        for launch in launches
        if launch.name in before and can_keep_actor(before[launch.name], launch)
    }
    if unchanged != before.keys():
        return
    new = {
        launch.name: launch.place
        for launch in launches
        if launch.name not in unchanged and launch.place is not None
    }
    node_ids = dict(zip(new, assign_nodes(list(new.values()), nodes), strict=True))
    for table in tables:
        _check_table_room(table, unchanged, node_ids)


def _check_table_room(
    table: _ServeCandidates, unchanged: Collection[str], node_ids: Mapping[str, str | None]
) -> None:
    """Raise DoesNotFit where a new replica of the table has no node.

    `node_ids`: of the new replicas; None: there is no room.
    """
    launches = table.launches
    place = launches[0].place
    has_room = all(node_ids.get(launch.name, "") is not None for launch in launches)
    if place is None or has_room:
        return
    runs = sum(launch.name in unchanged for launch in launches)
    request = f"{len(launches)} replicas of `{table.serve.model}`"
    if runs:
        request += f", of which {runs} run"
    if table.cards > 1:
        fewer = "lower --tp, "
    elif table.cards:
        fewer = ""
    else:
        fewer = "--threads N asks for fewer CPUs; "
    raise _no_room(
        request,
        room=sum(node_ids.get(launch.name) is not None for launch in launches),
        need=f"each needs {describe_request(place)}",
        nodes=table.nodes,
        left_out=table.left_out,
        fewer=fewer,
    )


def _no_room(
    request: str,
    room: int,
    need: str,
    nodes: Sequence[Node],
    left_out: Sequence[LeftOut],
    fewer: str = "",
) -> DoesNotFit:
    described_nodes = "; ".join((has_words(nodes), *map(str, left_out)))
    return DoesNotFit(
        f"{request}, there is room for {room}: {need}; {described_nodes}",
        hint=fewer + MORE_ROOM_HINT,
    )


# The weights


def path_of(serve: Serve) -> str | None:
    """Return the path of the weights on every node, if the model is named by a path."""
    if kind_of(serve.engine).weights in ("none", "store"):
        return None
    named = serve.checkpoint or serve.model
    path = Path(os.path.expanduser(named))  # noqa: PTH111 - leaves `~nobody` as it is
    is_file_name = named.endswith(".gguf") and ":" not in named
    is_folder = kind_of(serve.engine).weights != "gguf" and path.is_dir()
    if is_file_name or is_folder or named.startswith(_LOCAL):
        return str(path.absolute())
    return None


def weights_of(serve: Serve, paths: Paths, progress: PullProgress, *, pulls: bool) -> Weights:
    """Return the weights of a model.

    `pulls`: this machine may serve it, so its file is pulled here.
    """
    if not kind_of(serve.engine).needs_weights:
        return None, None, ANYWHERE
    shared = path_of(serve)
    if kind_of(serve.engine).weights != "gguf":
        return None, _checkpoint_name(serve, shared), ANYWHERE
    if shared is None:
        return _pulled_weights(serve, paths, progress, pulls=pulls)
    path = Path(shared)
    memory_bytes = _memory_bytes(serve, path) if path.exists() else 0
    return path, shared, PlacementRequest(memory_bytes=memory_bytes)


def _checkpoint_name(serve: Serve, shared: str | None) -> str | None:
    """Return what an engine that reads no GGUF is given; a path may exist on other nodes only."""
    if shared is not None and not Path(shared).exists():
        return shared
    return deploy.weights_named(serve)


def _pulled_weights(serve: Serve, paths: Paths, progress: PullProgress, *, pulls: bool) -> Weights:
    """Return the weights of a model that each node pulls itself."""
    named = serve.checkpoint or serve.model
    model = find_pullable(named)
    if model is None and not pulls and parse_hub_source(named) is not None:
        return None, named, PlacementRequest(source=named)
    if pulls or model is None:  # an unknown name is refused here
        local: Path | None = pull(named, cache_dir=paths.cache, progress=progress).path
    else:
        local = installed(model.id, paths.cache)
    if local is not None:
        memory_bytes = _memory_bytes(serve, local)
    elif model is not None:
        memory_bytes = model.gguf_bytes
    else:
        memory_bytes = 0
    return None, named, PlacementRequest(source=named, memory_bytes=memory_bytes)


def _memory_bytes(serve: Serve, path: Path) -> int:
    """Return the memory that the weights of a GGUF file and their cache take."""
    return (deploy.check_gguf(serve, path) or 0) + deploy.size_of(path)


# The nodes of one table


def _candidates(serve: Serve, survey: ClusterSurvey, *, starting: bool) -> _ServeCandidates:
    """Return the nodes that can run a table, whatever is free there.

    When `starting`, nodes whose GPUs others use are left out.
    """
    of_kind = [node for node in survey.nodes if not serve.kind or node.kind == serve.kind]
    if not of_kind:
        kinds = ", ".join(survey.kinds) or "no node at all"
        raise DoesNotFit(
            f"the cluster has no node of the kind {serve.kind} "
            f"that `{serve.model}` was planned for",
            hint=f"it has {kinds}; `skep up MODEL --cluster ...` plans again",
        )
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
    reasons = [(node, busy_cards(node, share)) for node in nodes]
    busy = tuple(LeftOut(node, reason) for node, reason in reasons if reason is not None)
    return tuple(node for node, reason in reasons if reason is None), busy


def _running_replicas(
    serve: Serve, names: Sequence[str], paths: Paths, standing: Sequence[Launch]
) -> tuple[Launch, ...] | None:
    """Return a table's replicas where they run; None: one is new or changed and needs a node."""
    running = {launch.name: launch for launch in standing if launch.place is not None}
    if not running.keys() >= set(names):
        return None
    path, checkpoint, _ = weights_of(serve, paths, lambda _done, _total: None, pulls=False)
    launches = []
    for name in names:
        old = running[name]
        assert old.place is not None
        if serve.threads:
            threads = serve.threads
        elif old.place.cards or not kind_of(serve.engine).needs_weights:
            threads = 0
        else:
            threads = old.threads
        new = deploy.launch_of(serve, old.name, path, checkpoint, threads=threads)
        if not can_keep_actor(old, new):
            return None
        launches.append(replace(new, place=old.place))
    return tuple(launches)


def _lack(serve: Serve, node: Node) -> str | None:
    """Return what a node lacks to run a table; None: nothing."""
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
    largest = max(node.gpus for node in nodes)
    if not deploy.on_cards(serve) or (not largest and cards == 1):
        return 0
    if largest < cards:
        raise DoesNotFit(
            f"a replica of `{serve.model}` needs {cards} GPUs on one node, "
            f"the largest has {largest:g}: {has_words(nodes)}",
            hint="lower tp, pp or dp (--tp, --pp), or add a larger node",
        )
    return cards


def card_share(serve: Serve) -> float:
    """Return the share of each GPU that the engine takes at the start; 0 if it takes what it
    needs.
    """
    return serve.options.memory_share or kind_of(serve.engine).memory_share or 0.0


# The replicas


def _threads(serve: Serve, nodes: Sequence[Node]) -> int:
    """Return the CPU threads of each replica: its share of the smallest node's cores, with the
    replicas spread evenly.
    """
    cores = [
        min(int(node.cpus), node.facts.cores)
        for node in nodes
        if node.facts is not None and node.cpus >= 1
    ]
    if not cores:
        return 1
    replicas_a_node = math.ceil(serve.replicas / len(cores))
    return max(1, min(cores) // replicas_a_node)


def _launches(
    table: _ServeCandidates,
    names: Sequence[str],
    weights: Weights,
    survey: ClusterSurvey,
    standing: Sequence[Launch],
) -> tuple[Launch, ...]:
    serve = table.serve
    path, checkpoint, weights_request = weights
    threads_before = {launch.name: launch.threads for launch in standing}
    computes_on_cpu = not table.cards and kind_of(serve.engine).needs_weights
    if len(table.nodes) < len(survey.nodes):
        nodes = tuple(node.name for node in table.nodes)
    else:
        nodes = ()
    where = replace(weights_request, nodes=nodes)
    if serve.room is not None:
        where = replace(where, memory_bytes=parse_bytes(serve.room))
    launches = []
    for name in names:
        if serve.threads:
            threads = serve.threads
        elif computes_on_cpu:
            threads = threads_before.get(name, _threads(serve, table.nodes))
        else:
            threads = 0
        if table.cards:
            place = placement_request(serve, where)
        else:
            place = replace(where, cpus=float(threads) or LIGHT_CPUS)
        launch = deploy.launch_of(serve, name, path, checkpoint, threads=threads)
        launches.append(replace(launch, place=place))
    return tuple(launches)


def placement_request(serve: Serve, where: PlacementRequest = ANYWHERE) -> PlacementRequest:
    """Return what a replica on GPUs needs; `where`: on which nodes."""
    cards = serve.options.cards
    cpus = float(max(cards, serve.threads or 0))
    return replace(where, cards=cards, cpus=cpus, memory_bytes=HOST_BYTES_A_CARD * cards)


def _check(launch: Launch, nodes: Sequence[Node]) -> None:
    """Raise for contradicting options and unsuitable GPUs. The replica actor checks the rest."""
    refusals = getattr(engine_named(launch.engine, launch.binary), "refusals", None)
    for problem, instead in refusals(launch) if refusals is not None else ():
        raise UserError(f"{launch.engine}: {problem}", hint=instead)
    cards = launch.place.cards if launch.place is not None else 0
    able = [node for node in nodes if node.facts is not None and len(node.cards) >= cards]
    devices: tuple[Device, ...] = ()
    # Where the nodes are of several kinds, it is not known which GPUs the replica gets.
    if cards and len({node.kind for node in able}) == 1:
        try:
            devices = rig_of_host(host_of(able[0])).rig.cards[:cards]
        except UserError:  # not in the catalogue: there are no known failures of them
            devices = ()
    deploy.check_known_failures(launch, devices)


# What a model's name stands for on a cluster: the plan for the kind of node that serves it fastest


def serve_on(request: ServeRequest, survey: ClusterSurvey, paths: Paths, say: Say) -> Serve:
    """Return what to serve for a request: its preset, the embedded engine, the engine as named, or
    a plan.
    """
    resolve.check_engine(request)
    preset = find_preset(request.model, presets_folder(paths))
    if preset is not None:
        return replace(_of_preset(preset, request, survey, say), gpus=())
    with_cards = [node for node in survey.nodes if node.cards]
    if resolve.is_for_embedded(
        request, llama_cards=any(gguf_engine() in node.engines for node in with_cards)
    ):
        able = sum(EMBEDDED in node.engines and node.cpus >= 1 for node in survey.nodes)
        serve = Serve(
            model=request.model,
            checkpoint=request.checkpoint,
            replicas=request.replicas or max(1, able),
        )
        slots = request.slots or serve.slots
        context = request.context or serve.context_tokens
        return replace(serve, slots=slots, context_tokens=context)
    is_planned_engine = request.engine in (None, *planned_engines())
    if not with_cards or not is_planned_engine or resolve.is_unplanned(request, say):
        serve = resolve.as_told(request, paths, cards=bool(with_cards), where="in the cluster")
        return replace(serve, gpus=())
    if resolve.is_missing(request.model):  # a plan reads the configuration
        raise UserError(
            f"`{request.model}` is not on this machine, so skep cannot plan it",
            hint="mount the shared folder here too, or name the engine: --engine vllm starts it "
            "without a plan",
        )
    return _planned(request, survey, paths, say)


def _of_preset(preset: Preset, request: ServeRequest, survey: ClusterSurvey, say: Say) -> Serve:
    serve = resolve.preset_serve(preset, request)
    cards = serve.options.cards if preset.hardware != NO_CARDS else 0
    able = [node for node in survey.nodes if node.facts is not None and node.gpus >= cards]
    if not able:
        raise DoesNotFit(
            f"the preset `{preset.name}` needs {preset.hardware}, "
            f"no node of the cluster has {cards} GPUs: {has_words(survey.nodes)}",
            hint="`skep cluster status` shows what the nodes have; --simulate tries a rig",
        )
    best = next((node for node in able if preset.engine in node.engines), able[0])
    version = best.engines.get(preset.engine)
    for line in resolve.about_preset(preset, serve, host_of(best), version):
        say(line)
    return serve


class NodeKind(msgspec.Struct, frozen=True):
    """The nodes with the same GPUs, and the best plan for them."""

    kind: str
    nodes: tuple[Node, ...]  # that have the engine, and free GPUs
    busy: tuple[LeftOut, ...]  # that have the engine, and GPUs that others use
    best: PlannedServe
    fits: int  # replicas, now

    def rank(self, replicas: int | None) -> tuple[bool, float]:
        """Return whether so many replicas fit, and the speed of those that do."""
        if replicas is None:
            count = self.fits
        else:
            count = min(replicas, self.fits)
        planned_replicas = max(1, self.best.plan.setup.layout.replicas)
        tok_s = count * self.best.tok_s / planned_replicas
        return self.fits >= (replicas or 1), tok_s


def _planned(request: ServeRequest, survey: ClusterSurvey, paths: Paths, say: Say) -> Serve:
    """Plan for each kind of node, and take the one that gives the most tokens a second.

    The others are left out.
    """
    node_kinds: list[NodeKind] = []
    failed: list[tuple[str, SkepError]] = []
    for kind, nodes in survey.kinds.items():
        if nodes[0].cards:
            try:
                node_kinds.append(_plan_kind(kind, request, nodes, paths, cache(say)))
            except (DoesNotFit, EngineError) as error:
                failed.append((kind, error))
    if not node_kinds:
        raise _fits_nowhere(request.model, failed)
    best = max(node_kinds, key=lambda node_kind: node_kind.rank(request.replicas))
    if best.fits < (request.replicas or 1):
        place = placement_request(best.best.serve)
        raise _no_room(
            f"{request.replicas or 1} replicas of `{request.model}`",
            room=best.fits,
            need=f"on {best.kind} each needs {describe_request(place)}",
            nodes=best.nodes,
            left_out=best.busy,
        )
    left_out = [(kind, error.message) for kind, error in failed]
    slower = "it would be slower, and one deployment serves on one kind of node"
    left_out += [(node_kind.kind, slower) for node_kind in node_kinds if node_kind is not best]
    for kind, why in left_out:
        say(f"warning: {kind} is left out: {why}")
    count = request.replicas or best.fits
    names = ", ".join(node.name for node in best.nodes[:4])
    if len(best.nodes) > 4:
        names += ", ..."
    say(f"planned for {best.kind} ({names}): {count} x {best.best}")
    return replace(best.best.serve, replicas=count, gpus=(), kind=best.kind)


def _plan_kind(
    kind: str, request: ServeRequest, nodes: Sequence[Node], paths: Paths, say: Say
) -> NodeKind:
    """Plan for one kind of node, with an engine that is installed there.

    Each node gets its share of the requested replicas where that can be, else as many as the
    planner chooses.
    """
    try:
        rig = rig_of_host(host_of(nodes[0]), request.link)
    except UserError as error:  # the catalogue has no such GPU
        raise EngineError(
            error.message, hint=f"--engine vllm serves {request.model} without a plan"
        ) from None
    rig = replace(rig, rig=replace(rig.rig, title=kind))
    share = _share_of_node(request, nodes)
    try:
        best = resolve.planned(share, paths, rig, say=say)
    except UserError:
        if request.replicas is None:
            raise
        best = resolve.planned(replace(share, replicas=None), paths, rig, say=say)
    serve = best.serve
    able = [node for node in nodes if _lack(serve, node) is None]
    if not able:
        names = ", ".join(node.name for node in nodes)
        hint = (
            "install it in the environment that their Ray was started in, or name another --engine"
        )
        raise EngineError(f"{serve.engine} is not installed on {names}", hint=hint)
    idle, busy = split_busy(able, card_share(serve))
    if not idle:
        raise DoesNotFit("; ".join(map(str, busy)), hint=BUSY_HINT)
    fits = cluster_nodes.capacity(placement_request(serve), idle)
    return NodeKind(kind, nodes=idle, busy=busy, best=best, fits=fits)


def _share_of_node(request: ServeRequest, nodes: Sequence[Node]) -> ServeRequest:
    """Return what one node has to serve of a request, with the engines that are installed."""
    engine = request.engine
    if engine is None:
        installed_engines = [
            name for name in planned_engines() if any(name in node.engines for node in nodes)
        ]
        engine = ",".join(installed_engines) or None
    return replace(
        request,
        engine=engine,
        replicas=_share(request.replicas, len(nodes)),
        concurrency=_share(request.concurrency, len(nodes)),
    )


def _share(count: int | None, nodes: int) -> int | None:
    """Return a node's share of a count, rounded up; None: nothing was requested."""
    return math.ceil(count / nodes) if count else None


def _fits_nowhere(name: str, failed: Sequence[tuple[str, SkepError]]) -> SkepError:
    """Return the error of a model that no kind of node can serve.

    The hint is that of the kind which came nearest: one that has the room and lacks the engine,
    else the largest.
    """
    best = next((error for _, error in failed if isinstance(error, EngineError)), failed[-1][1])
    reasons = [
        error.message if kind in error.message else f"{kind}: {error.message}"
        for kind, error in failed
    ]
    message = "; ".join(reasons)
    if len(failed) > 1:
        message = f"no kind of node can serve `{name}`: {message}"
    return type(best)(message, hint=best.hint)
