"""`skep scale`: how many replicas a model has, and another number of them."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from skep.cli.serve import JsonOption
from skep.errors import UserError


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: skep scale smollm2-135m=3 --wait")(scale)


def scale(
    wanted: Annotated[
        str | None, typer.Argument(metavar="[MODEL[=N]]", help="MODEL=N changes it; MODEL, or nothing, shows it.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return when replicas have come and gone.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Give a model more or fewer replicas, until the next `skep reload` or `skep up`.

    Those that go finish their answers first; other replicas are not touched. More than fits changes nothing.
    """
    from skep.cli.output import print_json
    from skep.engines.control import ask, socket_of
    from skep.places import user_paths

    model, replicas = parse_wanted(wanted)
    paths = user_paths(os.environ)
    message = {"op": "scale", "model": model, "replicas": replicas, "wait": wait}
    answer = ask(socket_of(paths.lock, paths.socket), message, timeout_s=None if wait else 120.0)
    del answer["ok"]
    if as_json:
        print_json(answer if replicas is not None else answer["models"])
    elif replicas is None:
        _show(answer["models"])
    else:
        _tell(answer, waited=wait)


def parse_wanted(text: str | None) -> tuple[str | None, int | None]:
    """`m=3` is ("m", 3). The name of a model may hold a `=`: the last one counts."""
    if text is None:
        return None, None
    model, equals, number = text.rpartition("=")
    if not equals:
        return number, None
    if not model or not number.isascii() or not number.isdecimal():
        raise UserError(f"`{text}` is not MODEL=N", hint="write it as smollm2-135m=3")
    return model, int(number)


def _show(models: list[dict[str, Any]]) -> None:
    from skep.cli.output import print_table

    rows = [[row["model"], str(row["replicas"]), str(row["ready"])] for row in models]
    print_table(("MODEL", "REPLICAS", "READY"), rows, right=("REPLICAS", "READY"))


def _tell(answer: dict[str, Any], *, waited: bool) -> None:
    from skep.cli.output import note

    came, went = answer["added"], answer["removed"]
    if came:
        note(f"{'started' if waited else 'starting'}: {', '.join(came)}")
    if went:
        note(f"{'stopped' if waited else 'stopped, once their answers are finished'}: {', '.join(went)}")
    change = f"{answer['before']} -> {answer['replicas']}" if came or went else f"still {answer['replicas']}"
    several = "replica" if answer["replicas"] == 1 else "replicas"
    note(f"{answer['model']}: {change} {several}, until the next `skep reload` or `skep up`")
