"""Commands for several models on one machine: load, unload, swap."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from skep.cli.serve import JsonOption

ModelArgument = Annotated[str, typer.Argument(help="A model as clients name it; `skep ps --json` has them.")]
NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Return at once; `skep ps` shows how it goes.")]
DrainOption = Annotated[
    str | None,
    typer.Option("--drain", metavar="DURATION", help="Cut answers that take longer, such as 30s. Default: wait."),
]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: skep load qwen3-coder")(load)
    app.command(epilog="Example: skep unload qwen3-coder --drain 30s")(unload)
    app.command(epilog="Example: skep swap gpt-oss-20b qwen3-coder")(swap)


def load(model: ModelArgument, no_wait: NoWaitOption = False, as_json: JsonOption = False) -> None:
    """Load a model now, before the first request for it. Others make room as they would for a request."""
    _say({"op": "load", "model": model, "wait": not no_wait}, f"{model} is {{state}}", as_json=as_json)


def unload(
    model: ModelArgument, drain: DrainOption = None, no_wait: NoWaitOption = False, as_json: JsonOption = False
) -> None:
    """Unload a model once its answers are finished, pinned or not. Its next request loads it again."""
    message = {"op": "unload", "model": model, "wait": not no_wait, "drain_s": _seconds(drain)}
    _say(message, f"{model} is {{state}}", as_json=as_json)


def swap(
    model_out: Annotated[str, typer.Argument(help="The model that goes, once its answers are finished.")],
    model_in: Annotated[str, typer.Argument(help="The model that comes in its place.")],
    drain: DrainOption = None,
    no_wait: NoWaitOption = False,
    as_json: JsonOption = False,
) -> None:
    """Unload one model and load another. Nothing is unloaded for one that can never fit."""
    message = {"op": "swap", "out": model_out, "in": model_in, "wait": not no_wait, "drain_s": _seconds(drain)}
    _say(message, f"{model_out} makes room, {model_in} is {{state}}", as_json=as_json)


def _seconds(text: str | None) -> float | None:
    from skep.units import parse_seconds

    return None if text is None else parse_seconds(text)


def _say(message: dict[str, Any], words: str, *, as_json: bool) -> None:
    from skep.cli.output import note, print_json
    from skep.engines.control import ask, socket_of
    from skep.places import user_paths

    paths = user_paths(os.environ)
    answer = ask(socket_of(paths.lock, paths.socket), message, timeout_s=None if message["wait"] else 10.0)
    del answer["ok"]
    if as_json:
        print_json(answer)
    else:
        note(words.format(state=answer["state"]))
