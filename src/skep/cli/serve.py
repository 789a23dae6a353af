"""The options of `skep up`, and the commands down, ps and logs."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

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
from skep.paths import Paths, user_paths
from skep.report.terminal import note, print_json
from skep.units import parse_seconds


@dataclass(frozen=True)
class ServeOptions:
    """The options of `skep up` as typed; None means that the planner chooses."""

    PANELS: ClassVar[dict[str, str]] = {
        "Run": "embedded dry_run detach config fallback as_json",
        "Layout": "replicas slots context concurrency load engine checkpoint quant kv spec tp pp "
        "graphs "
        "vision gpus "
        "memory_share kv_ram threads binary",
        "Gateway": "host port engine_port",
        "Simulation": "simulate gpu link",
        "Cluster": "cluster hive",
    }

    model: Annotated[
        str | None,
        argument(
            "Preset, model, checkpoint or GGUF file (default: skep.toml; without GPUs, embedded)."
        ),
    ] = None
    embedded: Annotated[bool, option("Serve the embedded model, whatever skep.toml serves.")] = (
        False
    )
    replicas: Annotated[
        int | None, option("Number of replicas (engine processes).", min=1, max=1024)
    ] = None
    slots: Annotated[
        int | None, option("Sequences that each replica decodes at a time.", min=1, max=1024)
    ] = None
    context: Annotated[int | None, option("Context length of each slot in tokens.", min=64)] = None
    threads: Annotated[
        int | None,
        option("CPU threads per replica (default: its share of the free cores).", min=1),
    ] = None
    host: HostOption = None
    port: PortOption = None
    engine_port: Annotated[
        int | None,
        option(
            "Port of the first engine; the others use the next ports (default: free ports).",
            min=0,
            max=65535,
        ),
    ] = None
    simulate: Annotated[
        bool,
        option(
            "Simulate the engine at the speed the planner predicts; needs no weights and no GPU."
        ),
    ] = False
    gpu: Annotated[
        tuple[str, ...],
        option('GPUs to simulate, such as "2x rtx-3090" (default: this machine\'s).'),
    ] = ()
    link: Annotated[str | None, option("Link between the GPUs: nvlink or pcie.")] = None
    engine: Annotated[
        str | None,
        option("vllm, sglang, llamacpp, ollama or embedded (default: the planner's choice)."),
    ] = None
    checkpoint: Annotated[
        str | None, option("Weights to load: hub name, folder, GGUF file or Ollama tag.")
    ] = None
    quant: Annotated[
        str | None, option("Weight format, such as awq (default: the planner's choice).")
    ] = None
    kv: Annotated[
        str | None, option("KV cache type, such as fp8 (default: the planner's choice).")
    ] = None
    spec: Annotated[str | None, option("Speculative decoding, such as mtp:3, or none.")] = None
    tp: Annotated[
        int | None, option("Tensor-parallel size: GPUs that share each layer of a replica.", min=1)
    ] = None
    pp: Annotated[
        int | None,
        option("Pipeline-parallel size: stages of a replica with their own GPUs.", min=1),
    ] = None
    graphs: Annotated[
        bool | None,
        option(
            (
                "Record CUDA graphs, or run eager with --no-graphs (default: the engine's, or "
                "the preset's)."
            ),
            "--graphs/--no-graphs",
        ),
    ] = None
    vision: Annotated[bool, option("Load the vision tower, if the checkpoint has one.")] = False
    concurrency: Annotated[
        int | None,
        option(
            "Number of agents to plan the layout for (default: 4).", "-c", "--concurrency", min=1
        ),
    ] = None
    load: Annotated[
        str | None,
        option(
            "What agents send, to plan the layout for: coding, small or task, as `skep plan` "
            "has it."
        ),
    ] = None
    gpus: Annotated[str | None, option("Use only these GPUs of this machine, such as 0,1.")] = None
    memory_share: Annotated[
        float | None,
        option(
            "Share of each GPU's memory that the engine may fill, such as 0.9.", min=0.01, max=1.0
        ),
    ] = None
    kv_ram: Annotated[
        int | None,
        option(
            "GiB of RAM, for each replica, for KV that has no room on the GPUs; 0: none "
            "(default: the engine's).",
            min=0,
            max=65536,
        ),
    ] = None
    binary: Annotated[
        str | None, option("Path of the engine's program, if it is not on PATH.")
    ] = None
    dry_run: Annotated[
        bool,
        option("Print what would be downloaded and started, with command lines; start nothing."),
    ] = False
    fallback: Annotated[
        bool, option("If an engine dies, restart it with the known remedy, one change at a time.")
    ] = False
    cluster: ClusterOption = None
    hive: HiveOption = None
    config: ConfigOption = None
    detach: DetachOption = False
    as_json: JsonOption = False

    def named(self, *names: str) -> dict[str, Any]:
        """Return those of these options that are given."""
        return given(**{name: getattr(self, name) for name in names})


@command(ROOT, "skep up --replicas 2 --slots 4 -d", runs="hive.up")
def up(options: ServeOptions) -> None:
    """Serve a model behind one endpoint. Options left out come from skep.toml, the preset or the
    planner.
    """


@command(ROOT, "skep down")
def down(
    wait: Annotated[
        str | None,
        option(
            "How long to wait for running requests before aborting them (default: "
            "skep.toml, else 30s)."
        ),
    ] = None,
) -> None:
    """Stop everything: finish running requests, then end the gateway and the engines."""
    from skep.config.settings import Settings
    from skep.supervisor.control import STOP_S, NoAnswer, NotRunning, ask_down, socket_of
    from skep.supervisor.silent_hive import end_silent_hive

    paths = user_paths(os.environ)
    drain_s = None if wait is None else parse_seconds(wait)
    try:
        leftovers = ask_down(socket_of(paths.lock, paths.socket), drain_s)
    except (NotRunning, NoAnswer):
        limit_s = STOP_S + (Settings(serve=()).drain_s if drain_s is None else drain_s)
        if not end_silent_hive(paths, limit_s, note):
            raise
        leftovers = []
    note(*(f"warning: {leftover}" for leftover in leftovers))
    note("skep is down")


@command(ROOT, "skep ps --json")
def ps(as_json: JsonOption = False) -> None:
    """List replicas with their slots, running requests and waiting requests."""
    from skep.report.columns import print_records
    from skep.report.hive_text import HIVE_COLUMNS, check_lines
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
        print_records(HIVE_COLUMNS, rows)
        for line in check_lines(rows):
            print(line)  # noqa: T201


@command(ROOT, "skep logs smollm2-135m-0 -f")
def logs(
    name: Annotated[
        str | None,
        argument("Replica name from `skep ps`, or `gateway`, `monitor` or `skep` (default: all)."),
    ] = None,
    follow: Annotated[
        bool, option("Keep printing new lines as they are written.", "-f", "--follow")
    ] = False,
    lines: Annotated[
        int, option("Number of lines to print from the end.", "-n", "--lines", min=0)
    ] = 100,
) -> None:
    """Print the logs of engines, gateway and monitor. Lines of several logs begin with the name of
    their log.
    """
    show_log(user_paths(os.environ), name, lines, follow=follow)


def show_log(paths: Paths, name: str | None, lines: int, *, follow: bool) -> None:
    """Print a log, or all; where it is followed, until Ctrl-C or the end of the hive."""
    from skep.supervisor.log_reader import read_all_logs, read_log

    if name is None:
        chunks = read_all_logs(paths, lines, follow=follow)
    else:
        chunks = read_log(paths, name, lines, follow=follow)
    try:
        for data in chunks:
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
    except KeyboardInterrupt:
        if not follow:
            raise
