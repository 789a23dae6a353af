"""`skep up`: what the options and skep.toml ask for, served here, in the background or on a
cluster; what is said.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from skep.cli.options import given
from skep.cli.serve import ServeOptions
from skep.config.keys import has_keys
from skep.config.load import find_config, load_settings, make_cluster
from skep.config.settings import EMBEDDED_MODEL, CliOverrides, Cluster, Serve, Settings
from skep.errors import EngineError, UserError
from skep.paths import Paths, user_paths
from skep.report.hive_text import check_lines, endpoint_lines
from skep.report.terminal import byte_progress, note, print_json

if TYPE_CHECKING:
    from skep.cluster.client import RayNodes
    from skep.deploy.resolve import ServeRequest
    from skep.supervisor.hive_process import HearAnnouncement


HIVE_PROGRAM = "skep.cli.hive_process"  # the module that a hive runs
# What an engine of this machine is told, and what its plan is told: both for a named model only.
_REAL_OPTIONS = ("checkpoint", "gpus", "memory_share", "kv_ram", "binary")
_PLAN_OPTIONS = ("link", "engine", "quant", "kv", "spec", "tp", "pp", "graphs", "concurrency")
HURRIED_STOPS = 2  # the first drains, the second ends it at once, one more kills it


def up(options: ServeOptions) -> None:
    paths = user_paths(os.environ)
    where = cluster_of(options.cluster, options.hive, options.config)
    if where is not None:
        refuse_together(
            "--cluster",
            gpus=options.gpus is not None,
            **{"engine-port": bool(options.engine_port)},
        )
    _refuse_lost_options(options)
    serve = {**options.named("replicas", "slots", "threads"), "context_tokens": options.context}
    model = options.model
    served: tuple[Serve, ...] = ()
    if options.simulate:
        from skep.deploy.resolve import simulated_serve

        model, serve = simulated_serve(_request(options), paths, note)
    elif model is not None:
        refuse_together("a model", embedded=options.embedded)
        served = _served(_request(options), where, paths)
        if where is not None:
            serve = {"threads": options.threads}
    elif not options.embedded and where is None and find_config(options.config, paths) is None:
        from skep.deploy.resolve import refuse_toy

        refuse_toy(paths)
    if options.embedded:
        model = model or EMBEDDED_MODEL
    overrides = CliOverrides(
        model=model,
        served=served,
        fallback=options.fallback,
        serve=given(**serve, engine_port=options.engine_port),
        gateway=given(host=options.host or None, port=options.port),
        cluster=where if options.cluster is not None or options.hive is not None else None,
    )
    start(
        overrides,
        options.config,
        detach=options.detach,
        as_json=options.as_json,
        dry_run=options.dry_run,
    )


def _refuse_lost_options(options: ServeOptions) -> None:
    """Raise where options would be without effect beside the others, or contradict them."""
    real = options.named(*_REAL_OPTIONS)
    if options.simulate:
        only_real = {name.replace("_", "-"): True for name in real}
        refuse_together(
            "--simulate",
            embedded=options.embedded,
            threads=options.threads is not None,
            **only_real,
        )
        if options.model is None:
            raise UserError(
                "--simulate needs a model", hint="`skep catalog models` lists the known models"
            )
        return
    if options.gpu:
        raise UserError(
            "--gpu needs --simulate",
            hint="add --simulate; --gpus 0,1 selects GPUs of this machine",
        )
    of_model = {**options.named(*_PLAN_OPTIONS), **real}
    if options.model is None and of_model:
        first, *_ = of_model
        name = first.replace("_", "-")
        raise UserError(
            f"--{name} is for a model named on the command line",
            hint="skep up MODEL --engine vllm",
        )


def _request(options: ServeOptions) -> ServeRequest:
    from skep.deploy.resolve import ServeRequest

    return msgspec.convert(options, ServeRequest, from_attributes=True)


def _served(request: ServeRequest, where: Cluster | None, paths: Paths) -> tuple[Serve, ...]:
    """Return what the model's name stands for, here or on the nodes of a cluster; none: the
    embedded engine serves it.
    """
    from skep.deploy.resolve import parse_gpus, serve_for

    parse_gpus(request.gpus)
    if where is None:
        chosen = serve_for(request, paths, note)
        return (chosen,) if chosen is not None else ()
    from skep.cluster.discover import survey
    from skep.cluster.placement import serve_on

    note(f"asking the nodes of the cluster at {where.address} ...")
    return (serve_on(request, survey(where.address), paths, note),)


def cluster_of(address: str | None, hive: str | None, config: Path | None) -> Cluster | None:
    """Return the cluster as typed; what is not typed, as skep.toml has it."""
    paths = user_paths(os.environ)
    cluster = load_settings(find_config(config, paths), paths, os.environ).cluster
    address = address or (cluster.address if cluster is not None else None)
    if address is None:
        if hive is not None:
            raise UserError(
                "--hive names a deployment of a cluster",
                hint="add --cluster auto, or its HOST:PORT",
            )
        return None
    return make_cluster(address, hive or (cluster.hive if cluster is not None else "skep"))


def refuse_together(option: str, **others: bool) -> None:
    wrong = next((name for name, is_given in others.items() if is_given), None)
    if wrong is not None:
        raise UserError(
            f"{option} and --{wrong} contradict each other", hint="leave one of them out"
        )


def start(
    overrides: CliOverrides,
    config: Path | None,
    *,
    detach: bool,
    as_json: bool,
    dry_run: bool = False,
) -> None:
    """Serve what the file says and the command line asks for.

    `dry_run`: say what that would be.
    """
    paths = user_paths(os.environ)
    config_file = find_config(config, paths)
    settings = load_settings(config_file, paths, os.environ)
    overrides = replace(
        overrides,
        folder=str(Path.cwd()),
        config=str(config_file.absolute()) if config_file else None,
    )
    settings = overrides.apply(settings)
    if not settings.serve and not settings.upstream:
        hint = (
            "`skep gateway --upstream http://127.0.0.1:8000 --slots 8`, or an [[upstream]] "
            "table in skep.toml"
        )
        raise UserError("no upstream is given", hint=hint)
    if dry_run:
        from skep.deploy.preview import preview
        from skep.report.hive_text import print_preview

        launch_preview = preview(settings, paths)
        if as_json:
            print_json(launch_preview)
        else:
            print_preview(launch_preview)
        return
    if settings.cluster is None:
        learn_flags(settings)
    serve(settings, paths, detach=detach, as_json=as_json)


def serve(settings: Settings, paths: Paths, *, detach: bool, as_json: bool) -> None:
    """Start it, and return when it is ready; in the foreground with Ctrl-C or `skep down`, a line
    per change.
    """
    from skep.supervisor.hive_process import start_detached

    env = os.environ.copy()
    with byte_progress("downloading the weights") as progress:
        hear = partial(_hear, {}, progress)
        if detach:
            _say_ready(
                start_detached(HIVE_PROGRAM, settings, paths, env, hear),
                settings,
                paths,
                detach=True,
                as_json=as_json,
            )
            return
        _serve_here(settings, paths, env, hear, as_json=as_json)
    note("skep is down")


def _serve_here(
    settings: Settings, paths: Paths, env: dict[str, str], hear: HearAnnouncement, *, as_json: bool
) -> None:
    """Return when the hive has ended. It ends with this process, however that ends."""
    from skep.supervisor.hive_process import HiveProcess

    stopped = list[int]()
    parent_fd, writing_fd = os.pipe()
    with (
        os.fdopen(parent_fd, "rb"),
        os.fdopen(writing_fd, "wb"),
        closing(HiveProcess(HIVE_PROGRAM, settings, paths, env, hear, parent_fd)) as hive,
    ):

        def stop(number: int, _frame: object) -> None:
            stopped.append(number)
            if len(stopped) > HURRIED_STOPS:
                hive.kill()
            hive.child.send_signal(signal.SIGTERM)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, stop)
        try:
            _say_ready(hive.until_ready(), settings, paths, detach=False, as_json=as_json)
            hive.until_ended()
        except EngineError:
            if not stopped:
                raise


def _say_ready(
    ready: dict[str, Any], settings: Settings, paths: Paths, *, detach: bool, as_json: bool
) -> None:
    # Servers of others are no reason to wait: the gateway takes them in when they answer.
    for row in ready["replicas"]:
        if row["kind"] == "upstream" and row["state"] != "ready":
            note(f"warning: {row['name']} is not ready yet, skep keeps asking: {row['why']}")
    if as_json:
        print_json(ready)
        sys.stdout.flush()
        return
    url = ready["openai_base_url"]
    models = ready["models"]
    listed = ", ".join(models) or "no model yet"
    if detach:
        note(f"skep is up (pid {ready['pid']}): {listed}")
        note("`skep ps` shows it, `skep logs NAME` its output, `skep down` stops it")
    else:
        note(f"ready: {url} serves {listed}; Ctrl-C stops it, a second one at once")
    note(*check_lines(ready["replicas"]))
    note(*endpoint_lines(url, models, keyed=has_keys(settings, paths)))
    if detach:
        print(url)  # noqa: T201


def remote_nodes(settings: Settings) -> RayNodes | None:
    """Return the nodes of the cluster that the settings name. Without one, nothing of Ray is
    loaded.
    """
    if settings.cluster is None:
        return None
    from skep.cluster.client import RayNodes

    return RayNodes(settings.cluster)


def learn_flags(settings: Settings) -> None:
    """Ask the installed engines which flags they know, once a version, and say so: vLLM takes half
    a minute to tell.
    """
    from skep.catalog.engines import kind_of

    others = [serve for serve in settings.serve if not kind_of(serve.engine).part_of_skep]
    if not others:
        return
    from skep.engines.base import engine_named
    from skep.engines.discovery import find_program, is_installed, known_flags

    for serve in others:
        engine_named(serve.engine)  # there is such an engine
        if is_installed(serve.engine, serve.binary):
            known_flags(find_program(serve.engine, serve.binary), tell=note)


def _hear(
    states: dict[str, str], progress: Callable[[int, int], None], message: Mapping[str, Any]
) -> None:
    for row in message.get("rows", ()):
        _say_state(row, states)
    if "warning" in message:
        note(f"warning: {message['warning']}")
    if "done" in message:
        progress(message["done"], message["total"])


def _say_state(row: dict[str, Any], states: dict[str, str]) -> None:
    """Print a line when a row's state has changed, with the reason if that has changed too."""
    name = row["name"]
    state = row["state"]
    why = row.get("why") or ""
    if states.get(name) == state:
        return
    states[name] = state
    last_reason = states.get(f"{name} why")
    states[f"{name} why"] = why
    note(f"{name}: {state}" + (f" ({why})" if why and why != last_reason else ""))
