"""From a model's name to replicas on nodes: the plan for each kind of node, what each replica asks of Ray, what fits.

Works on a survey of the cluster, without Ray. Ray places what comes out of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from skep.catalog.gpus import Device
from skep.catalog.models import find_pullable
from skep.catalog.presets import NO_CARDS, Preset
from skep.cluster import nodes as cluster_nodes
from skep.cluster.nodes import ClusterSurvey, LeftOut, Node, describe_request, has_words, host_of, left_out_lines
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
BUSY_HINT = "`nvidia-smi` there shows which process uses it; Ray may assign any card that it was started with"
ANYWHERE = PlacementRequest()
# the file and the name of a model's weights, and with their source the memory that they and a cache take on a node
Weights = tuple[Path | None, str | None, PlacementRequest]
MORE_ROOM_HINT = "lower --replicas, or add a node with `skep cluster join ADDRESS`"
_LOCAL = ("/", "./", "../", "~")
_ONE_MACHINE_ONLY = {  # by setting: what is said of it, and the hint
    "on_demand": ("cannot be loaded on demand", "leave `on_demand` and `idle_unload` out"),
    "gpus": ("takes no `gpus`", "leave `gpus` (--gpus) out: Ray gives each replica its cards"),
    "engine_port": ("takes no `engine_port`", "leave `engine_port` (--engine-port) out: each node has its own ports"),
}


class _ServeCandidates(msgspec.Struct, frozen=True):
    """One [[serve]] with the nodes that could serve it, and why the others could not."""

    serve: Serve
    stem: str  # of its replicas' names
    nodes: tuple[Node, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    cards: int = 0  # a replica
    weights: Weights = (None, None, ANYWHERE)
    kept: tuple[Launch, ...] | None = None  # as they stand, where no node could serve it now

    @property
    def threaded(self) -> bool:
        """Whether the CPU does the work."""
        return not self.cards and self.serve.engine not in NO_WEIGHTS

    @property
    def names(self) -> list[str]:
        return [f"{self.stem}-{number}" for number in range(self.serve.replicas)]


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

    `running`: those that keep their resources; by default the survey's. `avoid`: nodes that get no new replica.
    """
    starting, running = not running, running or survey.standing
    tables = []
    for serve in settings.serve:
        _refuse(serve)
        engine_named(serve.engine)
        stem = _stem(serve, settings)
        try:
            table = _candidates(serve, stem, survey, starting=starting)
        except (DoesNotFit, EngineError):  # a lost node is no reason to refuse replicas that run
            kept = _kept(serve, settings, paths, running)
            if kept is None:
                raise
            tables.append(_ServeCandidates(serve, stem, kept=kept))
            continue
        pulls = any(node.id == survey.here and node.gpus >= table.cards and node.cpus for node in table.nodes)
        tables.append(replace(table, weights=weights_of(serve, paths, progress, pulls=pulls)))
    threads = _threads(tables, running, avoid)
    rows = [_launches(table, survey, threads, running) for table in tables]
    launches = _all(settings, rows)
    for table, row in zip(tables, rows, strict=True):
        if row:
            _check(row[0], table.nodes)
    stays, lost = cluster_nodes.kept_and_unplaceable([launch for row in rows for launch in row], running, survey, avoid)
    for table, row in zip(tables, rows, strict=True):
        if any(launch.name in lost for launch in row):
            raise _too_small(table, row, stays, lost, avoid)
    missed = [(one, table.cards) for table in tables for one in table.left_out]
    large = [one for one, cards in missed if (one.node.gpus >= cards if cards else one.node.cpus)]
    for line in left_out_lines(large):
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
    """Return the replicas model by model, alternating between the kinds that serve one model; then upstreams."""
    launches: list[Launch] = []
    for model in dict.fromkeys(serve.model_id for serve in settings.serve):
        own = [row for serve, row in zip(settings.serve, rows, strict=True) if serve.model_id == model]
        for number in range(max(map(len, own))):
            launches += [row[number] for row in own if number < len(row)]
    launches += deploy.remote_launches(settings)
    deploy.check_names(launches)
    deploy.check_aliases(settings.aliases, launches)
    return tuple(launches)


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


def shared_paths(settings: Settings) -> tuple[str, ...]:
    """Return the paths that the survey must look for on the nodes: `survey(..., paths=shared_paths(settings))`."""
    found = [path for serve in settings.serve if (path := path_of(serve)) is not None]
    found += [serve.binary for serve in settings.serve if serve.binary and "/" in serve.binary]
    return tuple(dict.fromkeys(found))


def weights_of(serve: Serve, paths: Paths, progress: PullProgress, *, pulls: bool) -> Weights:
    """Return the weights of a model. `pulls`: this machine may serve it, so its file is pulled here."""
    if serve.engine in NO_WEIGHTS:
        return None, None, ANYWHERE
    named, shared = serve.checkpoint or serve.model, path_of(serve)
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
    memory = _held(serve, own) if own is not None else model.gguf_bytes if model is not None else 0
    return None, named, PlacementRequest(source=named, memory_bytes=memory)


def _held(serve: Serve, path: Path) -> int:
    return (deploy.check_gguf(serve, path) or 0) + deploy.size_of(path)


# The nodes of one table


def _candidates(serve: Serve, stem: str, survey: ClusterSurvey, *, starting: bool) -> _ServeCandidates:
    """Return the nodes that can run it, whatever is free there. When `starting`, GPUs in use by others are left out."""
    of_kind = [node for node in survey.nodes if not serve.kind or node.kind == serve.kind]
    if not of_kind:
        what = f"the cluster has no node of the kind {serve.kind} that `{serve.model}` was planned for"
        kinds = ", ".join(survey.kinds) or "no node at all"
        raise DoesNotFit(what, hint=f"it has {kinds}; `skep up MODEL --cluster ...` plans again")
    lacks = [(node, _lack(serve, node)) for node in of_kind]
    left_out = tuple(LeftOut(node, lack) for node, lack in lacks if lack is not None)
    if len(left_out) == len(of_kind):
        hint = "a node needs skep and the engine in the environment that its Ray was started in"
        raise EngineError(f"no node can serve `{serve.model}`: {'; '.join(map(str, left_out))}", hint=hint)
    nodes = tuple(node for node, lack in lacks if lack is None)
    cards = _cards(serve, nodes)
    if cards and starting:
        nodes, busy = cluster_nodes.split_busy(nodes, card_share(serve))
        left_out += busy
        if busy and not any(node.gpus for node in nodes):
            raise DoesNotFit(f"no card for `{serve.model}` is free: {'; '.join(map(str, busy))}", hint=BUSY_HINT)
    return _ServeCandidates(serve, stem, nodes, left_out, cards)


def _stem(serve: Serve, settings: Settings) -> str:
    alike = [other.kind for other in settings.serve if other.model_id == serve.model_id]
    return deploy.stem_of(serve) + (f"-{kind_word(serve.kind)}" if len(alike) > 1 and serve.kind else "")


def kind_word(kind: str) -> str:
    """Return a kind of node as part of a name: `2x NVIDIA GeForce RTX 3090` as 2x-rtx-3090."""
    words = [word for word in re.split(r"[^a-z0-9.]+", kind.casefold()) if word not in ("", "nvidia", "geforce")]
    return "-".join(words) or "other"


def _refuse(serve: Serve) -> None:
    """Raise UserError for settings that work on one machine only."""
    for name, (what, hint) in _ONE_MACHINE_ONLY.items():
        if getattr(serve, name):
            raise UserError(f"`{serve.model}` on a cluster {what}", hint=hint)


def _kept(serve: Serve, settings: Settings, paths: Paths, running: Sequence[Launch]) -> tuple[Launch, ...] | None:
    """Return its replicas where they run, or None if one is new or changed and needs a node."""
    _refuse(serve)
    stand = {launch.name: launch for launch in running if launch.place is not None}
    names = _ServeCandidates(serve, _stem(serve, settings)).names
    if not stand.keys() >= set(names):
        return None
    path, checkpoint, _ = weights_of(serve, paths, lambda _done, _total: None, pulls=False)
    row = []
    for old in map(stand.__getitem__, names):
        assert old.place is not None
        each = serve.threads or (0 if old.place.cards or serve.engine in NO_WEIGHTS else old.threads)
        held = old.place.memory_bytes if old.place.cards or serve.room is None else parse_bytes(serve.room)
        new = deploy.launch_of(serve, old.name, path, checkpoint, threads=each)
        if not cluster_nodes.can_keep_actor(old, new):
            return None
        row.append(replace(new, place=replace(old.place, memory_bytes=held)))
    return tuple(row)


def _lack(serve: Serve, node: Node) -> str | None:
    if node.facts is None:
        return node.why or "was not queried"
    if serve.binary is None and serve.engine not in node.engines:
        return f"has no {serve.engine} installed"
    wanted = (serve.binary, path_of(serve))
    missing = next((path for path in wanted if path is not None and not node.facts.paths.get(path, True)), None)
    return None if missing is None else f"has no {missing}"


def _cards(serve: Serve, nodes: Sequence[Node]) -> int:
    """Return the GPUs of one replica. Without GPUs in the cluster, an engine for one GPU uses the CPU."""
    each, most = serve.options.cards, max(node.gpus for node in nodes)
    if not deploy.on_cards(serve) or (not most and each == 1):
        return 0
    if most < each:
        what = f"a replica of `{serve.model}` needs {each} GPUs on one node, the largest has {most:g}"
        raise DoesNotFit(f"{what}: {has_words(nodes)}", hint="lower tp, pp or dp (--tp, --pp), or add a larger node")
    return each


def card_share(serve: Serve) -> float:
    """Return the share of each GPU that the engine takes at the start; 0 if it takes what it needs."""
    return serve.options.memory_share or DEFAULT_SHARES.get(serve.engine, 0.0)


# The replicas


def _threads(tables: Sequence[_ServeCandidates], running: Sequence[Launch], avoid: Collection[str]) -> int:
    """Return the CPU threads of each replica without a setting: the free cores divided among the new replicas."""
    open_ones = [table for table in tables if table.threaded and table.serve.threads is None and table.kept is None]
    stand = {launch.name for launch in running}
    coming = sum(name not in stand for table in open_ones for name in table.names)
    nodes = {node.id: node for table in open_ones for node in table.nodes if node.name not in avoid}
    return cluster_nodes.threads_each(coming, list(nodes.values()))


def _launches(
    table: _ServeCandidates, survey: ClusterSurvey, threads: int, running: Sequence[Launch]
) -> Sequence[Launch]:
    if table.kept is not None:
        return table.kept
    serve, (path, checkpoint, held) = table.serve, table.weights
    known = {} if serve.threads else {launch.name: launch.threads for launch in running}
    busy = tuple(one.node for one in table.left_out if one.busy)  # they get no replica at the start
    able = {node.id for node in (*table.nodes, *busy)}
    nodes = tuple(node.name for node in survey.nodes if node.id in able) if len(able) < len(survey.nodes) else ()
    where = replace(held, kind=serve.kind, nodes=nodes, shunned=tuple(node.name for node in busy))
    if serve.room is not None:
        where = replace(where, memory_bytes=parse_bytes(serve.room))
    made = []
    for name in table.names:
        each = serve.threads or (known.get(name, threads) if table.threaded else 0)
        place = placement_request(serve, where) if table.cards else replace(where, cpus=float(each) or LIGHT_CPUS)
        made.append(replace(deploy.launch_of(serve, name, path, checkpoint, threads=each), place=place))
    return made


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
    if cards and len({node.kind for node in able}) == 1:  # else it is not known which cards it gets
        try:
            devices = rig_of_host(host_of(able[0])).rig.cards[:cards]
        except UserError:  # not in the catalogue: nothing is known about them
            devices = ()
    deploy.check_known_failures(launch, devices)


def _too_small(
    table: _ServeCandidates, row: Sequence[Launch], stays: set[str], lost: set[str], avoid: Collection[str]
) -> DoesNotFit:
    place = row[0].place
    assert place is not None
    standing = sum(launch.name in stays - lost for launch in row)
    more = len(row) - standing - sum(launch.name in lost for launch in row)
    room = f"there is room for {more}" if more else "there is no room"
    if standing:
        room = f"{standing} of them run, {room}{' more' if more else ''}"
    asked, model = describe_request(place), f"`{table.serve.model}`"
    what = f"a replica of {model} needs {asked}, {room}"
    if len(row) > 1:
        what = f"{len(row)} replicas of {model} need {asked} each, {room}"
    drained = [LeftOut(node, "is drained") for node in table.nodes if node.name in avoid]
    lacking = "".join(f"; {one}" for one in (*drained, *table.left_out))
    fewer = "--threads N asks for fewer CPUs; " if table.threaded else "lower --tp, " if table.cards > 1 else ""
    had = has_words([node for node in table.nodes if node.name not in avoid]) or "no node may be used"
    return DoesNotFit(f"{what}: {had}{lacking}", hint=fewer + MORE_ROOM_HINT)


# What a model's name stands for on a cluster: for each kind of node its own plan, as many replicas as fit


def serves_for(wanted: ServeRequest, survey: ClusterSurvey, paths: Paths, say: Say) -> tuple[Serve, ...]:
    """Return one table for each kind of node that serves the model."""
    resolve.check_engine(wanted)
    preset = find_preset(wanted.model, presets_folder(paths))
    if preset is not None:
        return (replace(_of_preset(preset, wanted, survey, say), gpus=()),)
    with_cards = [node for node in survey.nodes if node.cards]
    if resolve.is_for_embedded(wanted, llama_cards=any("llamacpp" in node.engines for node in with_cards)):
        able = sum("embedded" in node.engines and node.cpus >= 1 for node in survey.nodes)
        serve = Serve(model=wanted.model, checkpoint=wanted.checkpoint, replicas=wanted.replicas or max(1, able))
        slots, context = wanted.slots or serve.slots, wanted.context or serve.context_tokens
        return (replace(serve, slots=slots, context_tokens=context),)
    if not with_cards or wanted.engine not in (None, *FOR_PLANS) or resolve.is_unplanned(wanted, say):
        return (replace(resolve.as_told(wanted, paths, cards=bool(with_cards), where="in the cluster"), gpus=()),)
    if resolve.is_missing(wanted.model):  # a plan reads the configuration
        hint = "mount the shared folder here too, or name the engine: --engine vllm starts it without a plan"
        raise UserError(f"`{wanted.model}` is not on this machine, so skep cannot plan it", hint=hint)
    return _of_plans(wanted, survey, paths, say)


def _of_preset(preset: Preset, wanted: ServeRequest, survey: ClusterSurvey, say: Say) -> Serve:
    serve = resolve.preset_serve(preset, wanted)
    cards = serve.options.cards if preset.hardware != NO_CARDS else 0
    able = [node for node in survey.nodes if node.facts is not None and node.gpus >= cards]
    if not able:
        hint = "`skep cluster status` shows what the nodes have; --simulate tries a rig"
        what = f"the preset `{preset.name}` needs {preset.hardware}, no node of the cluster has {cards} GPUs"
        raise DoesNotFit(f"{what}: {has_words(survey.nodes)}", hint=hint)
    best = next((node for node in able if preset.engine in node.engines), able[0])
    for line in resolve.about_preset(preset, serve, host_of(best), best.engines.get(preset.engine)):
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
    warnings = [f"warning: {line}" for line in left_out_lines(unused)]  # of the others `place_launches` tells
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
        best = resolve.planned(wanted, paths, rig, say=say)
    except UserError:
        if wanted.replicas is None:
            raise
        wanted = replace(wanted, replicas=None)
        best = resolve.planned(wanted, paths, rig, say=say)
    there = {name for node in nodes for name in node.engines}
    other = next((name for name in FOR_PLANS if name in there), None)
    if wanted.engine is not None or wanted.binary or best.serve.engine in there or other is None:
        return best
    return resolve.planned(replace(wanted, engine=other), paths, rig, say=say)


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
