"""Commands on a running hive: its models (load, unload) and its replicas (drain, restart, scale,
reload).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from skep.cli.options import JsonOption, argument, ask_hive, command, group, option
from skep.errors import UserError
from skep.paths import user_paths
from skep.report.hive_text import say_reload, say_scale
from skep.report.terminal import byte_progress, note, print_json

ModelArgument = Annotated[
    str, argument("Model name that clients use; `skep ps --json` lists them.")
]
NoWaitOption = Annotated[
    bool, option("Return at once; `skep ps` shows the progress.", "--no-wait")
]
model_app = group("model", "Load and unload the models of a running deployment.")
replica_app = group(
    "replica", "Drain, restart, scale and reload the replicas of a running deployment."
)


@command(model_app, "skep model load qwen3-coder")
def load(model: ModelArgument, no_wait: NoWaitOption = False, as_json: JsonOption = False) -> None:
    """Load a model now, before its first request. Other models make room as they would for a
    request.
    """
    _say(
        {"op": "load", "model": model, "wait": not no_wait},
        f"{model} is {{state}}",
        as_json=as_json,
    )


@command(model_app, "skep model unload qwen3-coder")
def unload(
    model: ModelArgument, no_wait: NoWaitOption = False, as_json: JsonOption = False
) -> None:
    """Unload a model after its running requests, even if it is pinned. The next request loads it
    again.
    """
    _say(
        {"op": "unload", "model": model, "wait": not no_wait},
        f"{model} is {{state}}",
        as_json=as_json,
    )


def _say(message: dict[str, Any], words: str, *, as_json: bool) -> None:
    answer = _answer(message, 10.0)
    if as_json:
        print_json(answer)
    else:
        note(words.format(state=answer["state"]))


def _answer(message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Return what the hive answers; with `wait`, however long it takes."""
    answer = ask_hive(message, None if message["wait"] else timeout_s)
    del answer["ok"]
    return answer


NameArgument = Annotated[str, argument("Replica name from `skep ps`.")]


@command(replica_app, "skep replica drain smollm2-135m-0 --wait")
def drain(
    name: NameArgument,
    wait: Annotated[bool, option("Return when the running requests have finished.")] = False,
) -> None:
    """Send no new requests to a replica until `skep replica undrain`. Running requests finish."""
    answer = _answer({"op": "drain", "name": name, "wait": wait}, 10.0)
    if answer["busy"]:
        running = f"; {answer['busy']} still running"
    else:
        running = " and has none running"
    note(f"{name} gets no new requests{running}")


@command(replica_app, "skep replica undrain smollm2-135m-0")
def undrain(name: NameArgument) -> None:
    """Send requests to a drained replica again."""
    ask_hive({"op": "undrain", "name": name})
    note(f"{name} serves again")


@command(replica_app, "skep replica restart gateway")
def restart(name: Annotated[str, argument("Replica name from `skep ps`, or `gateway`.")]) -> None:
    """Restart a replica, or the gateway, after its running requests; new ones wait meanwhile."""
    ask_hive({"op": "restart", "name": name}, 600)
    note(
        f"{name} is restarting; `skep ps` shows it"
        if name != "gateway"
        else "the new gateway is serving"
    )


@command(replica_app, "skep replica reload --wait")
def reload(
    config: Annotated[
        Path | None, option("Configuration file (default: the one skep was started with).")
    ] = None,
    wait: Annotated[bool, option("Return when all replicas have started or stopped.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Read skep.toml and keys.toml again and apply them; only replicas whose settings changed
    restart.

    Options that were given to `skep up` still override the file. A file with an error changes
    nothing."""
    from contextlib import chdir
    from dataclasses import replace

    import msgspec

    from skep.config.keys import keys_path, read_keys
    from skep.config.load import settings_with_overrides
    from skep.config.settings import CliOverrides
    from skep.deploy.launches import plan_launches
    from skep.supervisor.main import check_tls

    paths = user_paths(os.environ)
    origin = ask_hive({"op": "origin"})
    overrides = msgspec.convert(origin["overrides"], CliOverrides)
    if config is not None:
        overrides = replace(overrides, config=str(config.absolute()))
    with chdir(overrides.folder or "."), byte_progress("downloading the weights") as progress:
        # SKEP_API_KEY stays what the running one has.
        settings = settings_with_overrides(overrides, paths, {})
        check_tls(settings.gateway)
        read_keys(keys_path(paths))
        # There, what fits is known to who runs it.
        if not origin.get("on_cluster", settings.cluster):
            plan_launches(settings, paths, progress, starting=False)
    answer = _answer(
        {"op": "reload", "settings": msgspec.to_builtins(settings), "wait": wait}, 120.0
    )
    if as_json:
        print_json(answer)
    else:
        say_reload(answer)


@command(replica_app, "skep replica scale smollm2-135m=3 --wait")
def scale(
    wanted: Annotated[str, argument("Model and its number of replicas.", metavar="MODEL=N")],
    wait: Annotated[bool, option("Return when all replicas have started or stopped.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Set the number of replicas of a model until the next `skep replica reload` or `skep up`.

    Removed replicas finish their running requests. If the replicas do not fit, nothing changes.
    """
    model, _, number = wanted.rpartition("=")  # the name of a model may hold a `=`
    if not model or not number.isascii() or not number.isdecimal():
        raise UserError(
            f"`{wanted}` is not MODEL=N",
            hint="write it as smollm2-135m=3; `skep ps` shows the replicas",
        )
    answer = _answer({"op": "scale", "model": model, "replicas": int(number), "wait": wait}, 120.0)
    if as_json:
        print_json(answer)
    else:
        say_scale(answer)
