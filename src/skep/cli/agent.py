"""`skep agent`: a coding agent that is installed here, started against the running deployment."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any

from skep.cli.options import ROOT, EndpointOptions, JsonOption, argument, command, option
from skep.errors import EndpointError, KeyRefused, UserError
from skep.paths import user_paths
from skep.report.terminal import note, print_json, print_list, print_table

if TYPE_CHECKING:
    from pathlib import Path

    from skep.clients.catalog import Client, EndpointFacts
    from skep.clients.start import ClientStart
    from skep.paths import Paths


@command(ROOT, "skep agent claude -- -p 'fix the failing test'")
def agent(
    name: Annotated[str | None, argument("Agent; without one they are listed.")] = None,
    arguments: Annotated[
        tuple[str, ...], argument("Behind `--`: the agent's own arguments.", metavar="-- ARGS")
    ] = (),
    *,
    endpoint: EndpointOptions,
    show: Annotated[
        bool,
        option("Print what would be set, as lines for a shell, and start nothing.", "--print"),
    ] = False,
    write: Annotated[
        bool, option("Merge it into the agent's own configuration, with a backup.")
    ] = False,
    undo: Annotated[bool, option("Take out again what --write has merged.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Start a coding agent with everything set: URL, key, model names, window, limits.

    It finds the deployment that runs here, or the one of --url or SKEP_URL. --json starts nothing,
    as --print."""
    from skep.clients.catalog import client_named

    given = {"--print": show, "--write": write, "--undo": undo}
    actions = [action for action, is_given in given.items() if is_given]
    _check_actions(name, actions, arguments, as_json=as_json)
    if name is None:
        _print_clients(as_json=as_json)
        return
    client = client_named(name)
    paths = user_paths(os.environ)
    record = paths.state / "agents" / f"{name}.json"
    if undo:
        from skep.clients.written import undo_settings

        note(*undo_settings(client, record))
        return
    if not (show or write or as_json):
        _check_installed(client)
    url, key, key_variable = _endpoint(endpoint, paths)
    is_named = endpoint.url is not None or bool(os.environ.get("SKEP_URL"))
    facts = _facts(url, key, endpoint.model, is_named=is_named)
    _warn(client, facts)
    if write:
        from skep.clients.written import write_settings

        files = write_settings(client, facts, record, os.environ)
        note(*(f"{file.path} has it{_backup_words(file.backup)}" for file in files))
        note(f"`skep agent {name} --undo` takes it out again")
        if client.write_note:
            note(client.write_note)
    elif show or as_json:
        _print_start(client, facts, arguments, paths, key_variable, as_json=as_json)
    else:
        _run(client, facts, arguments, paths)


def _check_actions(
    name: str | None, actions: list[str], arguments: tuple[str, ...], *, as_json: bool
) -> None:
    """Raise UserError where the words of the command line do not belong together."""
    if len(actions) > 1:
        raise UserError(f"{' and '.join(actions)} contradict each other", hint="give one of them")
    if actions and name is None:
        raise UserError(f"{actions[0]} needs an agent", hint="`skep agent` lists them")
    starts_nothing = actions in (["--write"], ["--undo"])
    if starts_nothing and arguments:
        hint = "they are for a start: `skep agent NAME -- ARGS`"
        raise UserError(f"{actions[0]} takes no arguments of the agent", hint=hint)
    if starts_nothing and as_json:
        hint = "--json alone has what would be set"
        raise UserError(f"{actions[0]} and --json contradict each other", hint=hint)


def _print_clients(*, as_json: bool) -> None:
    from skep.clients.catalog import clients

    rows = [
        {
            "name": name,
            "title": client.title,
            "path": shutil.which(client.program),
            "speaks": client.speaks,
            "install": client.install,
        }
        for name, client in clients().items()
    ]

    def cells(row: dict[str, Any]) -> tuple[str, ...]:
        return (
            row["name"],
            row["title"],
            row["speaks"],
            row["path"] or f"not installed: {row['install']}",
        )

    def print_rows(rows: Any) -> None:
        print_table("NAME|AGENT~1|SPEAKS|INSTALLED", cells, rows)

    print_list(rows, print_rows, dict, as_json=as_json, none_yet="")
    if not as_json:
        note("`skep agent NAME` starts one against the deployment that runs here")


def _check_installed(client: Client) -> None:
    if shutil.which(client.program) is None:
        raise UserError(
            f"{client.title} is not installed: there is no `{client.program}`", hint=client.install
        )


def _endpoint(options: EndpointOptions, paths: Paths) -> tuple[str, str | None, str]:
    """Return the URL, the key and the variable that the key is in."""
    from skep.engines.base import GATEWAY_KEY
    from skep.swarm.address import key_here, url_here

    url = options.url or url_here(paths, os.environ)
    if options.key_env is not None:
        key = options.key()
    else:
        key = key_here(url, os.environ)
    return url, key, options.key_env or GATEWAY_KEY


def _facts(url: str, key: str | None, model: str | None, *, is_named: bool) -> EndpointFacts:
    """Ask the endpoint what it serves. `is_named`: somebody typed its URL."""
    import asyncio
    from datetime import UTC, datetime
    from uuid import uuid4

    from skep.bench.endpoint import api_of, chosen_model, served_models
    from skep.clients.catalog import NO_KEY, EndpointFacts, context_in, slots_in

    try:
        models = asyncio.run(served_models(url, key=key))
    except EndpointError as error:
        if is_named or isinstance(error, KeyRefused):
            raise
        hint = "`skep up -d` starts one; --url or SKEP_URL names one elsewhere"
        raise EndpointError(f"no deployment runs here: {error.message}", hint=hint) from None
    chosen = chosen_model(models, model, url)
    if not chosen.isprintable():
        raise UserError(
            f"{url} serves a model whose name cannot be printed", hint="give it another name there"
        )
    origin, base, _ = api_of(url, key)
    return EndpointFacts(
        root=f"{origin}{base}".removesuffix("/v1"),
        url=f"{origin}{base}",
        key=key or NO_KEY,
        model=chosen,
        context=context_in(models[chosen]),
        slots=slots_in(models[chosen]),
        session=str(uuid4()),
        now=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z"),
    )


def _warn(client: Client, facts: EndpointFacts) -> None:
    if facts.context is None:
        note(
            f"warning: {facts.root} does not tell the context of {facts.model}: "
            f"{client.title} uses its own default"
        )
    elif facts.context < client.min_context:
        need = (
            f"{client.title} needs some {client.min_context:,} for its own prompt and a "
            "conversation"
        )
        note(f"warning: {facts.model} has {facts.context:,} tokens of context; {need}")


def _backup_words(backup: str | None) -> str:
    if backup is None:
        return ""
    return f"; before: {backup}"


def _print_start(
    client: Client,
    facts: EndpointFacts,
    arguments: tuple[str, ...],
    paths: Paths,
    key_variable: str,
    *,
    as_json: bool,
) -> None:
    from msgspec.structs import replace

    from skep.clients.catalog import NO_KEY
    from skep.clients.start import HIDDEN_KEY, shell_lines, shown, start_of

    has_key = facts.key != NO_KEY
    shown_facts = replace(facts, key=HIDDEN_KEY) if has_key else facts
    start = start_of(client, shown_facts, _folder(paths), os.environ)
    if not as_json:
        print("\n".join(shell_lines(start, arguments, key_variable)))  # noqa: T201
        return
    print_json(
        {
            "program": client.program,
            "installed": shutil.which(client.program) is not None,
            "url": facts.url,
            "model": facts.model,
            "context": facts.context,
            "slots": facts.slots,
            "args": [*(shown(word, key_variable) for word in start.args), *arguments],
            "env": {name: shown(value, key_variable) for name, value in start.env.items()},
            "unset": start.unset,
            "files": {path: shown(text, key_variable) for path, text in start.files.items()},
        }
    )


def _folder(paths: Paths) -> Path:
    return paths.state / "agents"


def _run(client: Client, facts: EndpointFacts, arguments: tuple[str, ...], paths: Paths) -> None:
    """Become the client."""
    from skep.clients.start import start_of

    start: ClientStart = start_of(client, facts, _folder(paths), os.environ)
    start.write_files()
    if facts.context is None:
        size = ""
    else:
        size = f", {facts.context:,} tokens of context"
    note(f"{client.title} uses {facts.model} at {facts.root}{size}")
    sys.stdout.flush()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        # Python ignores them, and what it becomes would, too.
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(  # noqa: S606
            start.program, [start.program, *start.args, *arguments], start.environment(os.environ)
        )
    except OSError as error:
        raise EndpointError(
            f"`{start.program}` cannot be started: {error.strerror}", hint=client.install
        ) from None
