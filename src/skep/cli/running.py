"""Commands that change a running hive: drain, undrain, reload."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from skep.cli.serve import JsonOption

RESTART_GATEWAY = ("body_limit", "files_quota", "store_requests")
WORDS = {
    "added": "started",
    "removed": "stopped, once their answers are finished",
    "changed": "started anew, one after the other, once their answers are finished",
    "adjusted": "adjusted without a restart",
}

NameArgument = Annotated[
    str, typer.Argument(help="A replica's name as in `skep ps`, or a node's: all that stand there.")
]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: skep drain smollm2-135m-0 --wait")(drain)
    app.command(epilog="Example: skep undrain smollm2-135m-0")(undrain)
    app.command(epilog="Example: skep reload --wait")(reload)


def drain(
    name: NameArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Return when it has finished what it had.")] = False,
) -> None:
    """Send a replica, or all of a node, nothing new; what they have is finished. Until `skep undrain`."""
    from skep.cli.output import note

    answer = _ask({"op": "drain", "name": name, "wait": wait}, timeout_s=None if wait else 10.0)
    left = f"; {answer['busy']} under way" if answer["busy"] else " and is empty"
    note(f"{_who(name, answer)} gets nothing new{left}")


def undrain(name: NameArgument) -> None:
    """Let a drained replica, or those of a drained node, serve again."""
    from skep.cli.output import note

    answer = _ask({"op": "undrain", "name": name})
    note(f"{_who(name, answer)} serves again")


def _who(name: str, answer: dict[str, Any]) -> str:
    """A replica, or a node with those that stand there."""
    return name if answer["replicas"] == [name] else f"{name} ({', '.join(answer['replicas'])})"


def reload(
    config: Annotated[
        Path | None, typer.Option(help="Another configuration file. Default: the one skep was started with.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return when replicas have come and gone.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Read skep.toml and keys.toml anew. Settings and keys hold at once; only replicas that differ are touched.

    What the command line said at the start goes on winning over the file. A file with an error changes nothing.
    """
    from contextlib import chdir, nullcontext
    from dataclasses import asdict, replace

    from skep.cli.output import byte_progress, print_json
    from skep.configfile import wished_settings
    from skep.keyfile import keys_path, read_keys
    from skep.launching import plan_launches
    from skep.places import user_paths
    from skep.settings import wishes_of
    from skep.wiring import check_tls

    paths = user_paths(os.environ)
    origin = _ask({"op": "origin"})
    wishes = wishes_of(origin["wishes"])
    if config is not None:
        wishes = replace(wishes, config=str(config.absolute()))
    with chdir(wishes.folder) if wishes.folder else nullcontext(), byte_progress("fetching the weights") as progress:
        settings = wished_settings(wishes, paths, {})  # SKEP_API_KEY stays what the running one has
        check_tls(settings.gateway)
        read_keys(keys_path(paths))
        if not origin.get("on_cluster", settings.cluster):  # there, what fits is known to who runs it
            plan_launches(settings, paths, progress, starting=False)
    message = {"op": "reload", "settings": asdict(settings), "wait": wait}
    answer = _ask(message, timeout_s=None if wait else 120.0)
    del answer["ok"]
    if as_json:
        print_json(answer)
    else:
        _tell(answer)


def _tell(answer: dict[str, Any]) -> None:
    from skep.cli.output import note

    for warning in answer["warnings"]:
        note(f"warning: {warning}")
    for key, words in WORDS.items():
        if answer[key]:
            note(f"{words}: {', '.join(answer[key])}")
    for name in answer["left_out"]:
        command = "skep restart gateway" if name in RESTART_GATEWAY else "skep down && skep up -d"
        note(f"not yet in force: `{name}`; it takes `{command}`")
    note(
        "settings and keys are reloaded" + ("" if any(answer[key] for key in WORDS) else "; replicas stay as they are")
    )


def _ask(message: dict[str, Any], timeout_s: float | None = 10.0) -> dict[str, Any]:
    from skep.engines.control import ask, socket_of
    from skep.places import user_paths

    paths = user_paths(os.environ)
    return ask(socket_of(paths.lock, paths.socket), message, timeout_s=timeout_s)
