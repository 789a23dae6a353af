"""Commands that serve: up, down, ps, logs."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec.structs import replace

from skep.cli.options import (
    ROOT,
    ClusterOption,
    ConfigOption,
    DetachOption,
    HiveOption,
    HostOption,
    JsonOption,
    PortOption,
    argument,
    ask_hive,
    command,
    given,
    option,
)
from skep.errors import UserError
from skep.paths import Paths, user_paths
from skep.report.terminal import note, print_json
from skep.units import parse_seconds

if TYPE_CHECKING:
    from skep.config.settings import CliOverrides, Cluster, Serve
    from skep.deploy.resolve import ServeRequest


@dataclass(frozen=True)
class ServeOptions:
    """The options of `skep up` as typed; None means that the planner chooses."""

    PANELS: ClassVar[dict[str, str]] = {
        "Run": "embedded dry_run detach config fallback as_json",
        "Layout": "replicas slots context concurrency engine checkpoint quant kv spec tp pp vision gpus memory_share "
        "threads binary",
        "Gateway": "host port engine_port",
        "Simulation": "simulate gpu link",
        "Cluster": "cluster hive",
    }

    model: Annotated[
        str | None, argument("Preset, model, checkpoint or GGUF file (default: skep.toml; without GPUs, embedded).")
    ] = None
    embedded: Annotated[bool, option("Serve the embedded model, whatever skep.toml serves.", "--embedded")] = False
    replicas: Annotated[int | None, option("Number of replicas (engine processes).", min=1, max=1024)] = None
    slots: Annotated[int | None, option("Sequences that each replica decodes at a time.", min=1, max=1024)] = None
    context: Annotated[int | None, option("Context length of each slot in tokens.", min=64)] = None
    threads: Annotated[int | None, option("CPU threads per replica (default: its share of the free cores).", min=1)] = (
        None
    )
    host: HostOption = None
    port: PortOption = None
    engine_port: Annotated[
        int | None,
        option("Port of the first engine; the others use the next ports (default: free ports).", min=0, max=65535),
    ] = None
    simulate: Annotated[
        bool,
        option("Simulate the engine at the speed the planner predicts; needs no weights and no GPU.", "--simulate"),
    ] = False
    gpu: Annotated[tuple[str, ...], option('GPUs to simulate, such as "2x rtx-3090" (default: this machine\'s).')] = ()
    link: Annotated[str | None, option("Link between the GPUs: nvlink or pcie.")] = None
    engine: Annotated[
        str | None, option("vllm, sglang, llamacpp, ollama or embedded (default: the planner's choice).")
    ] = None
    checkpoint: Annotated[str | None, option("Weights to load: hub name, folder, GGUF file or Ollama tag.")] = None
    quant: Annotated[str | None, option("Weight format, such as awq (default: the planner's choice).")] = None
    kv: Annotated[str | None, option("KV cache type, such as fp8 (default: the planner's choice).")] = None
    spec: Annotated[str | None, option("Speculative decoding, such as mtp:3, or none.")] = None
    tp: Annotated[int | None, option("Tensor-parallel size: GPUs that share each layer of a replica.", min=1)] = None
    pp: Annotated[int | None, option("Pipeline-parallel size: stages of a replica with their own GPUs.", min=1)] = None
    vision: Annotated[bool, option("Load the vision tower, if the checkpoint has one.", "--vision")] = False
    concurrency: Annotated[
        int | None, option("Number of agents to plan the layout for (default: 4).", "-c", "--concurrency", min=1)
    ] = None
    gpus: Annotated[str | None, option("Use only these GPUs of this machine, such as 0,1.")] = None
    memory_share: Annotated[
        float | None, option("Share of each GPU's memory that the engine may fill, such as 0.9.", min=0.01, max=1.0)
    ] = None
    binary: Annotated[str | None, option("Path of the engine's program, if it is not on PATH.")] = None
    dry_run: Annotated[
        bool, option("Print what would be downloaded and started, with command lines; start nothing.", "--dry-run")
    ] = False
    fallback: Annotated[
        bool, option("If an engine dies, restart it with the known remedy, one change at a time.", "--fallback")
    ] = False
    cluster: ClusterOption = None
    hive: HiveOption = None
    config: ConfigOption = None
    detach: DetachOption = False
    as_json: JsonOption = False

    def named(self, *names: str) -> dict[str, Any]:
        """Return those of these options that are given."""
        return given(**{name: getattr(self, name) for name in names})


@command(ROOT, "skep up --replicas 2 --slots 4 -d")
def up(options: ServeOptions) -> None:
    """Serve a model behind one endpoint. Options left out come from skep.toml, the preset or the planner."""
    from skep.config.load import find_config
    from skep.config.settings import EMBEDDED_MODEL, CliOverrides

    paths = user_paths(os.environ)
    where = cluster_of(options.cluster, options.hive, options.config)
    if where is not None:
        refuse_together("--cluster", gpus=options.gpus is not None, **{"engine-port": bool(options.engine_port)})
    serve = {**options.named("replicas", "slots", "threads"), "context_tokens": options.context}
    real = options.named("checkpoint", "gpus", "memory_share", "binary")
    plan = options.named("link", "engine", "quant", "kv", "spec", "tp", "pp", "concurrency")
    model = options.model
    served: tuple[Serve, ...] = ()
    if options.simulate:
        from skep.deploy.resolve import simulated_serve

        only_real = {name.replace("_", "-"): True for name in real}
        refuse_together("--simulate", embedded=options.embedded, threads=options.threads is not None, **only_real)
        if model is None:
            raise UserError("--simulate needs a model", hint="`skep catalog models` lists the known models")
        model, serve = simulated_serve(_request(options), paths, note)
    elif options.gpu:
        raise UserError("--gpu needs --simulate", hint="add --simulate; --gpus 0,1 selects GPUs of this machine")
    elif model is not None:
        refuse_together("a model", embedded=options.embedded)
        served = _served(_request(options), where, paths)
        serve = serve if where is None else {"threads": options.threads}
    elif plan or real:
        name = next(iter({**plan, **real})).replace("_", "-")
        raise UserError(f"--{name} is for a model named on the command line", hint="skep up MODEL --engine vllm")
    elif not options.embedded and where is None and find_config(options.config, paths) is None:
        from skep.deploy.resolve import refuse_toy

        refuse_toy(paths)
    overrides = CliOverrides(
        model=model or (EMBEDDED_MODEL if options.embedded else None),
        served=served,
        fallback=options.fallback,
        serve=given(**serve, engine_port=options.engine_port),
        gateway=given(host=options.host or None, port=options.port),
        cluster=where if options.cluster is not None or options.hive is not None else None,
    )
    start(overrides, options.config, detach=options.detach, as_json=options.as_json, dry_run=options.dry_run)


def _request(options: ServeOptions) -> ServeRequest:
    import msgspec

    from skep.deploy.resolve import ServeRequest

    return msgspec.convert(options, ServeRequest, from_attributes=True)


def _served(wanted: ServeRequest, where: Cluster | None, paths: Paths) -> tuple[Serve, ...]:
    """What the model's name stands for, here or on the nodes of a cluster; none: the embedded engine serves it."""
    from skep.deploy.resolve import parse_gpus, serve_for

    parse_gpus(wanted.gpus)
    if where is None:
        chosen = serve_for(wanted, paths, note)
        return (chosen,) if chosen is not None else ()
    from skep.cluster.discover import survey
    from skep.cluster.resolve import serves_for

    address = where.address
    nodes = survey(address, slow=lambda: note(f"asking the nodes of the cluster at {address} ..."))
    return serves_for(wanted, nodes, paths, note)


def cluster_of(address: str | None, hive: str | None, config: Path | None) -> Cluster | None:
    """As typed; what is not typed, as skep.toml has it."""
    from skep.config.load import find_config, load_settings, make_cluster

    paths = user_paths(os.environ)
    found = load_settings(find_config(config, paths), paths, os.environ).cluster
    address = address or (found.address if found is not None else None)
    if address is None:
        if hive is not None:
            raise UserError("--hive names a deployment of a cluster", hint="add --cluster auto, or its HOST:PORT")
        return None
    return make_cluster(address, hive or (found.hive if found is not None else "skep"))


def refuse_together(option: str, **others: bool) -> None:
    wrong = next((name for name, is_given in others.items() if is_given), None)
    if wrong is not None:
        raise UserError(f"{option} and --{wrong} contradict each other", hint="leave one of them out")


def start(overrides: CliOverrides, config: Path | None, *, detach: bool, as_json: bool, dry_run: bool = False) -> None:
    """Serve what the file says and the command line asks for. `dry_run`: say what that would be."""
    from skep.cli import hive
    from skep.config.load import find_config, load_settings

    paths = user_paths(os.environ)
    found = find_config(config, paths)
    settings = load_settings(found, paths, os.environ)
    overrides = replace(overrides, folder=str(Path.cwd()), config=str(found.absolute()) if found else None)
    settings = overrides.apply(settings)
    if not settings.serve and not settings.upstream:
        hint = "`skep gateway --upstream http://127.0.0.1:8000 --slots 8`, or an [[upstream]] table in skep.toml"
        raise UserError("no upstream is given", hint=hint)
    if dry_run:
        from skep.deploy.launches import preview
        from skep.report.hive_text import print_preview

        shown = preview(settings, paths)
        if as_json:
            print_json(shown)
        else:
            print_preview(shown)
        return
    if settings.cluster is None:
        hive.learn_flags(settings)
    if detach:
        hive.serve_detached(settings, paths, as_json=as_json)
    else:
        hive.serve_here(settings, paths, as_json=as_json)


@command(ROOT, "skep down")
def down(
    wait: Annotated[
        str | None, option("How long to wait for running requests before aborting them (default: skep.toml, else 30s).")
    ] = None,
) -> None:
    """Stop everything: finish running requests, then end the gateway and the engines."""
    from skep.supervisor.control import ask_down, socket_of

    paths = user_paths(os.environ)
    left = ask_down(socket_of(paths.lock, paths.socket), None if wait is None else parse_seconds(wait))
    note(*(f"warning: {what}" for what in left))
    note("skep is down")


@command(ROOT, "skep ps --json")
def ps(as_json: JsonOption = False) -> None:
    """List replicas with their slots, running requests and waiting requests."""
    from skep.report.columns import print_records
    from skep.report.hive_text import HIVE
    from skep.supervisor.control import NotRunning

    try:
        rows = ask_hive({"op": "status"})["rows"]
    except NotRunning:
        if not as_json:
            raise
        rows = []
    if as_json:
        print_json(rows)
    else:
        print_records(HIVE, rows)


@command(ROOT, "skep logs smollm2-135m-0 -f")
def logs(
    name: Annotated[
        str | None, argument("Replica name from `skep ps`, or `gateway`, `monitor` or `skep` (default: all).")
    ] = None,
    follow: Annotated[bool, option("Keep printing new lines as they are written.", "-f", "--follow")] = False,
    lines: Annotated[int, option("Number of lines to print from the end.", "-n", "--lines", min=0)] = 100,
) -> None:
    """Print the logs of engines, gateway and monitor. Lines of several logs begin with the name of their log."""
    show_log(user_paths(os.environ), name, lines, follow=follow)


def show_log(paths: Paths, name: str | None, lines: int, *, follow: bool) -> None:
    """Print a log, or all; where it is followed, until Ctrl-C or the end of the hive."""
    from skep.supervisor.logs import read_all_logs, read_log

    every = read_all_logs(paths, lines, follow=follow) if name is None else read_log(paths, name, lines, follow=follow)
    try:
        for data in every:
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
    except KeyboardInterrupt:
        if not follow:
            raise
