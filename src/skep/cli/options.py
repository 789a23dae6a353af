"""Commands whose options are frozen dataclasses: an option is defined once, as a field, and travels in its object.

A field that is `Annotated[..., option(...)]` is an option; any other is an ordinary field with its default.
Also the options that many commands share, and the hive that they mean.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cached_property
from importlib import import_module
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from skep.errors import SkepError, UserError
from skep.paths import Paths, user_paths

if TYPE_CHECKING:
    from skep.bench.endpoint import Endpoint
    from skep.store.database import Store

F = TypeVar("F", bound=Callable[..., Any])


def command(app: typer.Typer, example: str, *, name: str | None = None, runs: str | None = None) -> Callable[[F], F]:
    """Add a function as a command. A parameter that is a dataclass stands for the options among its fields.

    `runs`: "MODULE.FUNCTION" of `skep.cli` that carries the command out, imported when it runs; it takes the same
    parameters by name. Without it the function itself does. An integer that it returns is the exit code.
    """

    def add(function: F) -> F:
        parameters: list[Parameter] = []
        hints = get_type_hints(function, include_extras=True)
        for parameter in signature(function).parameters.values():
            kind = hints[parameter.name]
            parameters += _flat(kind) if is_dataclass(kind) else [_parameter(parameter.name, kind, parameter.default)]

        def run(**given: Any) -> None:
            values = {name: _value(name, hints[name], given) for name in signature(function).parameters}
            code = (function if runs is None else implementation(runs))(**values)
            if code:
                raise typer.Exit(code)

        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        run.__name__, run.__doc__ = function.__name__, function.__doc__
        app.command(name, epilog=f"Example: {example}", cls=GroupedCommand)(run)
        return function

    return add


def _flat(kind: Any) -> Iterator[Parameter]:
    """In the order of `PANELS`, the groups of a help page; fields that it does not name come first, as they stand."""
    hints = get_type_hints(kind, include_extras=True)
    panels = {name: title for title, names in getattr(kind, "PANELS", {}).items() for name in names.split()}
    places = {name: place for place, name in enumerate(panels)}
    for field in sorted(fields(kind), key=lambda field: places.get(field.name, -1)):
        if get_origin(hint := hints[field.name]) is Annotated:
            inner, about = get_args(hint)
            about = copy(about)
            about.rich_help_panel = panels.get(field.name)
            default = Parameter.empty if field.default is MISSING else field.default
            yield _parameter(field.name, Annotated[inner, about], default)


def _parameter(name: str, hint: Any, default: Any) -> Parameter:
    """Typer has lists where the dataclass has tuples."""
    if _is_tuple(hint):
        inner, *about = get_args(hint)
        hint, default = Annotated[list[get_args(inner)[0]] | None, *about], None  # type: ignore[misc]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _value(name: str, kind: Any, given: dict[str, Any]) -> Any:
    if not is_dataclass(kind):
        return given[name]
    hints = get_type_hints(kind, include_extras=True)
    own = {key: given[key] for key in hints if key in given}
    made: Any = kind
    return made(**{key: tuple(value or ()) if _is_tuple(hints[key]) else value for key, value in own.items()})


def _is_tuple(hint: Any) -> bool:
    return get_origin(hint) is Annotated and get_origin(get_args(hint)[0]) is tuple


def implementation(path: str) -> Callable[..., Any]:
    """Return "MODULE.FUNCTION" of `skep.cli`, imported now."""
    module, _, name = path.partition(".")
    found: Callable[..., Any] = getattr(import_module(f"skep.cli.{module}"), name)
    return found


HELP = ("-h", "--help")


class PlainGroup(TyperGroup):
    """A group whose help, which it also gives without a command, has the first sentence of each command, whole."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as Typer calls it
        lines = [(name, (one.help or "").split(". ")[0].split("\n\n")[0]) for name, one in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl([(name, line if line.endswith((".", "?")) else f"{line}.") for name, line in lines])


class GroupWithDefault(PlainGroup):
    """A group with one command whose name may be left out: `skep tune MODEL` is `skep tune run MODEL`."""

    default = "run"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args[:1] not in ([name] for name in (*self.commands, *HELP)):
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        command = self.commands[self.default]
        formatter.write_usage(ctx.command_path, " ".join(command.collect_usage_pieces(self._inner(ctx))))
        formatter.write_usage(ctx.command_path, "COMMAND [ARGS]...", prefix="or:    ")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.commands[self.default].format_options(self._inner(ctx), formatter)
        self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        self.commands[self.default].format_epilog(self._inner(ctx), formatter)

    def _inner(self, ctx: Any) -> Any:
        command = self.commands[self.default]
        return command.context_class(command, info_name=self.default, parent=ctx)


class GroupedCommand(TyperCommand):
    """A command whose help shows its options in groups, where they have some."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[Any]] = {}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                is_argument = param.param_type_name == "argument"
                title = "Arguments" if is_argument else getattr(param, "rich_help_panel", None) or "Options"
                panels.setdefault(title, []).append(tuple(map(_plain_help, record)))
        for title, records in sorted(
            panels.items(), key=lambda panel: (panel[0] != "Arguments", panel[0] == "Options")
        ):
            with formatter.section(title):
                formatter.write_dl(records)


_TYPES = {"int": "N", "float": "X", "path": "FILE", "str": "TEXT"}


def _plain_help(text: str) -> str:
    """Return "--slots <int range>" as "--slots N", and the help without the range of allowed values."""
    text = re.sub(r"<(?:list\[)?(\w+)\]?(?: range)?>", lambda found: _TYPES.get(found[1], found[0]), text)
    return re.sub(r"  \[[\d.]*[<=]*x[<>=\d.]+\]|; [\d.]*[<=]*x[<>=\d.]+(?=\])", "", text)


def group(help: str, *, default: str | None = None, **more: Any) -> typer.Typer:  # noqa: A002 - as Typer calls it
    """Return a group of commands. `default`: the command that is meant where none is named."""
    if default is None:
        return typer.Typer(help=help, rich_markup_mode=None, cls=PlainGroup, **more)
    kind = type("Group", (GroupWithDefault,), {"default": default})
    return typer.Typer(help=help, rich_markup_mode=None, cls=kind, **more)


def registering(commands: typer.Typer, name: str) -> Callable[[typer.Typer], None]:
    """Return the `register` of a module that has one group of commands."""
    return lambda app: app.add_typer(commands, name=name)


def option(help: str, *names: str, **more: Any) -> Any:  # noqa: A002 - as Typer calls it
    return typer.Option(*names, help=help, **more)


def argument(help: str, **more: Any) -> Any:  # noqa: A002 - as Typer calls it
    return typer.Argument(help=help, **more)


# The options that many commands share

Model = Annotated[str | None, option("Model name; default: the only one served there.")]
KeyEnv = Annotated[str | None, option("Environment variable with the endpoint's API key.")]
JsonOption = Annotated[bool, option("Print one JSON document on stdout.", "--json")]
ConfigOption = Annotated[Path | None, option("Configuration file (default: skep.toml if there is one).")]

HostOption = Annotated[str | None, option("Address of the gateway; any but loopback requires a key.")]
PortOption = Annotated[int | None, option("Port of the gateway; 0 picks a free one.", min=0, max=65535)]
DetachOption = Annotated[bool, option("Run in the background.", "-d", "--detach")]
ClusterOption = Annotated[
    str | None, option("A Ray cluster by its head's HOST:PORT; auto: this machine's.", metavar="ADDRESS")
]
HiveOption = Annotated[str | None, option("Name of the hive, where a cluster has several.")]


@dataclass(frozen=True, kw_only=True)
class EndpointOptions:
    """The endpoint as given on the command line."""

    url: Annotated[str | None, option("Base URL, with or without /v1; default: what `skep up` runs.")] = None
    model: Model = None
    key_env: KeyEnv = None
    api: str = "openai"

    @cached_property
    def address(self) -> str:
        return self.url or running_url()

    def key(self) -> str | None:
        """Return the key in the given variable, else skep's own key for a server on this machine."""
        from skep.supervisor.control import local_key

        if self.key_env is None:
            return local_key(self.address, os.environ, user_paths(os.environ))
        value = os.environ.get(self.key_env)
        if not value:
            raise UserError(f"--key-env `{self.key_env}` is not set", hint=f"export {self.key_env}=... first")
        return value

    async def find(self) -> Endpoint:
        from skep.bench.endpoint import find_endpoint

        if self.api not in ("openai", "ollama"):
            raise UserError(f"--api `{self.api}` is unknown", hint="choose openai or ollama")
        return await find_endpoint(self.address, self.model, key=self.key(), api=self.api)


@dataclass(frozen=True)
class ServeOptions:
    """The options of `skep up` as typed; None means that the planner chooses."""

    PANELS: ClassVar[dict[str, str]] = {
        "Run": "embedded detach config fallback as_json",
        "Layout": "replicas slots context concurrency engine checkpoint quant kv spec tp gpus memory_share "
        "threads binary",
        "Gateway": "host port engine_port",
        "Simulation": "simulate gpu link",
        "Cluster": "cluster hive",
    }

    model: Annotated[
        str | None, argument("A preset, a model, a checkpoint or a GGUF file; default: skep.toml, else embedded.")
    ] = None
    embedded: Annotated[bool, option("Serve the embedded model, even if there is a skep.toml.", "--embedded")] = False
    replicas: Annotated[int | None, option("Number of engine processes.", min=1, max=1024)] = None
    slots: Annotated[int | None, option("Sequences a replica decodes at a time.", min=1, max=1024)] = None
    context: Annotated[int | None, option("Tokens of context per slot.", min=64)] = None
    threads: Annotated[int | None, option("CPU threads per replica.", min=1)] = None
    host: HostOption = None
    port: PortOption = None
    engine_port: Annotated[int | None, option("Port of the first engine; 0 picks free ones.", min=0, max=65535)] = None
    simulate: Annotated[
        bool,
        option("Simulate the engine at the speed the planner predicts; needs no weights and no GPU.", "--simulate"),
    ] = False
    gpu: Annotated[tuple[str, ...], option('Cards to simulate, such as "2x rtx-3090"; default: this machine\'s.')] = ()
    link: Annotated[str | None, option("Link between the cards: nvlink or pcie.")] = None
    engine: Annotated[str | None, option("vllm, sglang, llamacpp, ollama or embedded; default: the best plan's.")] = (
        None
    )
    checkpoint: Annotated[str | None, option("The weights: hub name, folder, GGUF file or Ollama tag.")] = None
    quant: Annotated[str | None, option("Format of the weights; default: the best plan's.")] = None
    kv: Annotated[str | None, option("Type of the KV cache; default: the best plan's.")] = None
    spec: Annotated[str | None, option("Speculation, such as mtp:3, or none.")] = None
    tp: Annotated[int | None, option("Cards that share one replica.", min=1)] = None
    concurrency: Annotated[int | None, option("Agents to plan the layout for.", "-c", "--concurrency", min=1)] = None
    gpus: Annotated[str | None, option("This machine's cards to use, by number: 0,1.")] = None
    memory_share: Annotated[
        float | None, option("Share of each card's memory that the engine may fill.", min=0.01, max=1.0)
    ] = None
    binary: Annotated[str | None, option("The engine's program, where it is not on PATH.")] = None
    fallback: Annotated[
        bool, option("Restart an engine that dies with the known remedy, one change at a time.", "--fallback")
    ] = False
    cluster: ClusterOption = None
    hive: HiveOption = None
    config: ConfigOption = None
    detach: DetachOption = False
    as_json: JsonOption = False

    def named(self, *names: str) -> dict[str, Any]:
        """Return those of these options that are given."""
        return given(**{name: getattr(self, name) for name in names})


def given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


# The hive and the store that are meant


def ask_hive(message: dict[str, Any], timeout_s: float | None = 10.0, paths: Paths | None = None) -> dict[str, Any]:
    """Ask the hive that runs here, or in the folders of `paths`."""
    from skep.supervisor.control import ask, socket_of

    paths = paths or user_paths(os.environ)
    return ask(socket_of(paths.lock, paths.socket), message, timeout_s=timeout_s)


def running_url(otherwise: str | None = "http://127.0.0.1:8400") -> str:
    """Return the URL of the hive that runs here; without one `otherwise`, None: an error."""
    try:
        return str(ask_hive({"op": "status"})["url"])
    except SkepError:
        if otherwise is None:
            raise
        return otherwise


def existing(
    none_yet: str = "there are no runs yet", hint: str = "`skep bench sweep` makes one", *, read_only: bool = True
) -> Store:
    """Open the store. Where there is none yet, raise UserError: looking makes no file."""
    from skep.store.database import open_store

    path = user_paths(os.environ).store
    if not path.exists():
        raise UserError(none_yet, hint=hint)
    return open_store(path, read_only=read_only)
