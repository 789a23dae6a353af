"""Commands whose options are frozen dataclasses: an option is defined once, as a field, and
travels in its object.

A field that is `Annotated[..., option(...)]` is an option; any other is an ordinary field with its
default. Also the options that many commands share, and the hive that they mean."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cached_property
from importlib import import_module
from inspect import Parameter, signature
from math import inf
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from skep.errors import SkepError, UserError
from skep.files import OutputFile
from skep.paths import user_paths

if TYPE_CHECKING:
    from skep.bench.endpoint import Endpoint
    from skep.store.database import Store

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
HELP = ("-h", "--help")
ROOT = click.Group(
    "skep", context_settings={"help_option_names": [*HELP], "max_content_width": 100}
)


@dataclass(frozen=True)
class About:
    """What a command line says of a parameter, beside its type and its default."""

    help: str
    names: tuple[str, ...] = ()
    is_argument: bool = False
    metavar: str | None = None
    min: float | None = None
    max: float | None = None
    hidden: bool = False


def option(help: str, *names: str, **settings: Any) -> Any:  # noqa: A002 - as click calls it
    return About(help, names, **settings)


def argument(help: str, **settings: Any) -> Any:  # noqa: A002 - as click calls it
    return About(help, is_argument=True, **settings)


def command(
    group: click.Group, example: str, *, name: str | None = None, runs: str | None = None
) -> Callable[[F], F]:
    """Add a function as a command. A parameter that is a dataclass stands for the options among
    its fields.

    `runs`: "MODULE.FUNCTION" of `skep.cli` that carries the command out, imported when it runs; it
    takes the same parameters by name. Without it the function itself does. An integer that it
    returns is the exit code."""

    def add(function: F) -> F:
        hints = get_type_hints(function, include_extras=True)
        taken = {
            name: parameter.default for name, parameter in signature(function).parameters.items()
        }
        params: list[click.Parameter] = []
        for key, default in taken.items():
            if is_dataclass(hints[key]):
                params += _fields_as_parameters(hints[key])
            elif hints[key] is not click.Context:
                params.append(_parameter(key, hints[key], default))

        files = {
            param.name: param
            for param in params
            if getattr(param.type, "type", None) is OutputFile
        }
        if files and "overwrite" not in [param.name for param in params]:
            named = " or ".join(f"{file.opts[-1]}" for file in files.values())
            overwrite = Annotated[
                bool, option(f"Replace the {named} file if it exists.", "--overwrite")
            ]
            parameter = _parameter("overwrite", overwrite, default=False)
            first_file, *_ = files.values()
            panel = getattr(first_file, "panel", None)
            parameter.panel = panel  # type: ignore[attr-defined]
            params.append(parameter)

        def run(**given: Any) -> Any:
            for key in files.keys() & {key for key, value in given.items() if value is not None}:
                typed = (
                    click.get_current_context().get_parameter_source(key)
                    is not ParameterSource.DEFAULT
                )
                file_options = {
                    "option": files[key].opts[-1],
                    "named": typed,
                    "overwrite": given["overwrite"],
                }
                vars(given[key]).update(file_options)
            values = {key: _value(key, hints[key], given) for key in taken}
            return (function if runs is None else implementation(runs))(**values)

        command_name = name or function.__name__.replace("_", "-")
        about = _help_text(function)
        group.add_command(
            PlainCommand(command_name, None, run, params, about, f"Example: {example}")
        )
        return function

    return add


def _help_text(function: Callable[..., Any]) -> str:
    """Return the docstring with one line for each paragraph: a help page breaks lines itself."""
    paragraphs = (function.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _value(name: str, kind: Any, given: dict[str, Any]) -> Any:
    if kind is click.Context:
        return click.get_current_context()
    if not is_dataclass(kind):
        return given[name]
    options_class: Any = kind
    return options_class(
        **{field.name: given[field.name] for field in fields(kind) if field.name in given}
    )


def _fields_as_parameters(kind: Any) -> Iterator[click.Parameter]:
    """In the order of `PANELS`, the groups of a help page; fields that it does not name come
    first, as they stand.
    """
    hints = get_type_hints(kind, include_extras=True)
    panels = {
        name: title
        for title, names in getattr(kind, "PANELS", {}).items()
        for name in names.split()
    }
    places = {name: place for place, name in enumerate(panels)}
    for field in sorted(fields(kind), key=lambda field: places.get(field.name, -1)):
        if get_origin(hints[field.name]) is Annotated:
            if field.default is MISSING:
                default = Parameter.empty
            else:
                default = field.default
            parameter = _parameter(field.name, hints[field.name], default)
            parameter.panel = panels.get(field.name)  # type: ignore[attr-defined]
            yield parameter


_METAVARS = {int: "N", float: "X", Path: "FILE", OutputFile: "FILE", str: "TEXT"}


def _parameter(name: str, hint: Any, default: Any) -> click.Parameter:
    inner, about = get_args(hint)
    kind = next(
        part
        for part in (get_args(inner) if isinstance(inner, UnionType) else (inner,))
        if part is not NoneType
    )
    several = get_origin(kind) is tuple
    kind = get_args(kind)[0] if several else kind
    settings: dict[str, Any] = {
        "required": default is Parameter.empty,
        "type": _type_of(kind, about),
    }
    if default is not Parameter.empty and not several:
        settings["default"] = default
    if about.is_argument:
        settings |= {"nargs": -1} if several else {}
        argument = click.Argument([name], metavar=about.metavar, **settings)
        argument.about = about.help  # type: ignore[attr-defined]
        return argument
    names = about.names or (f"--{name.replace('_', '-')}",)
    if kind is bool:
        return click.Option([*names, name], is_flag=True, help=about.help, **settings)
    shows_default = default not in (None, Parameter.empty, (), "")
    metavar = about.metavar or _METAVARS[kind]
    return click.Option(
        [*names, name],
        metavar=metavar,
        multiple=several,
        show_default=shows_default,
        help=about.help,
        hidden=about.hidden,
        **settings,
    )


def _type_of(kind: Any, about: About) -> Any:
    if kind in (int, float):
        return _Number(kind, about.min, about.max)
    if kind in (Path, OutputFile):
        return click.Path(path_type=kind)
    return kind


class _Number(click.ParamType[Any]):
    """A number within limits."""

    def __init__(
        self, kind: type[int | float], lowest: float | None, highest: float | None
    ) -> None:
        self.name = "number"
        self._kind = kind
        self._lowest = lowest
        self._highest = highest

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = self._kind(value)
        except ValueError:
            self.fail(
                f"`{value}` should be a {'whole ' if self._kind is int else ''}number", param, ctx
            )
        lowest = -inf if self._lowest is None else self._lowest
        highest = inf if self._highest is None else self._highest
        if not lowest <= number <= highest or number in (-inf, inf):
            limits = []
            if lowest > -inf:
                limits.append(f"at least {lowest:g}")
            if highest < inf:
                limits.append(f"at most {highest:g}")
            self.fail(
                f"`{value}` should be {' and '.join(limits) or 'a finite number'}", param, ctx
            )
        return number


def implementation(path: str) -> Callable[..., Any]:
    """Return "MODULE.FUNCTION" of `skep.cli`, imported now."""
    module, _, name = path.partition(".")
    function: Callable[..., Any] = getattr(import_module(f"skep.cli.{module}"), name)
    return function


class PlainGroup(click.Group):
    """A group whose help, which it also gives without a command, has the first sentence of each
    command, whole.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        lines = [
            (name, (command.help or "").split(". ")[0].split("\n\n")[0])
            for name, command in self.commands.items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, line if line.endswith((".", "?")) else f"{line}.") for name, line in lines]
            )


class GroupWithDefault(PlainGroup):
    """A group with one command whose name may be left out: `skep tune MODEL` is `skep tune run
    MODEL`.
    """

    default: str

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] not in ([name] for name in (*self.commands, *HELP)):
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        pieces = self.commands[self.default].collect_usage_pieces(self._inner(ctx))
        formatter.write_usage(ctx.command_path, " ".join(pieces))
        formatter.write_usage(ctx.command_path, "COMMAND [ARGS]...", prefix="or:    ")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.commands[self.default].format_options(self._inner(ctx), formatter)
        self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.commands[self.default].format_epilog(self._inner(ctx), formatter)

    def _inner(self, ctx: click.Context) -> click.Context:
        return click.Context(self.commands[self.default], info_name=self.default, parent=ctx)


class PlainCommand(click.Command):
    """A command whose help shows its arguments too, and its options in groups, where they have
    some.
    """

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for param in self.get_params(ctx):
            if isinstance(param, click.Argument):
                if isinstance(param.default, str):
                    default = f"  [default: {param.default}]"
                else:
                    default = ""
                suffix = "  [required]" if param.required else default
                panels["Arguments"].append(
                    (param.human_readable_name, f"{getattr(param, 'about', '')}{suffix}")
                )
            elif (record := param.get_help_record(ctx)) is not None:
                panels.setdefault(getattr(param, "panel", None) or "Options", []).append(record)
        for title, records in sorted(panels.items(), key=lambda panel: panel[0] == "Options"):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def group(
    name: str,
    help: str,  # noqa: A002 - as click calls it
    *,
    default: str | None = None,
) -> click.Group:
    """Return a group of commands. `default`: the command that is meant where none is named."""
    if default is None:
        part = PlainGroup(name, help=help)
    else:
        part = GroupWithDefault(name, help=help)
    if isinstance(part, GroupWithDefault):
        part.default = default or ""
    ROOT.add_command(part)
    return part


# The options that many commands share

Model = Annotated[str | None, option("Model name (default: the only model served).")]
KeyEnv = Annotated[str | None, option("Environment variable with the endpoint's API key.")]
JsonOption = Annotated[bool, option("Print one JSON document on stdout.", "--json")]
ConfigOption = Annotated[
    Path | None, option("Configuration file (default: skep.toml, if it exists).")
]

HostOption = Annotated[
    str | None, option("Address the gateway listens on; beyond loopback a key is required.")
]
PortOption = Annotated[
    int | None,
    option(
        "Port of the gateway; 0 picks a free port (default: skep.toml, else 8400).",
        min=0,
        max=65535,
    ),
]
DetachOption = Annotated[bool, option("Run in the background.", "-d", "--detach")]
ClusterOption = Annotated[
    str | None,
    option(
        "Serve on a Ray cluster: HOST:PORT of its head, or auto for this machine's.",
        metavar="ADDRESS",
    ),
]
HiveOption = Annotated[
    str | None, option("Name of the deployment, if the cluster runs several (default: skep).")
]


@dataclass(frozen=True, kw_only=True)
class EndpointOptions:
    """The endpoint as given on the command line."""

    url: Annotated[
        str | None, option("Base URL, with or without /v1 (default: the gateway of `skep up`).")
    ] = None
    model: Model = None
    key_env: KeyEnv = None
    api: str = "openai"

    @cached_property
    def address(self) -> str:
        return self.url or running_url()

    def key(self) -> str | None:
        """Return the key in the given variable, else skep's own key for a server on this
        machine.
        """
        from skep.supervisor.control import local_key

        if self.key_env is None:
            return local_key(self.address, os.environ, user_paths(os.environ))
        value = os.environ.get(self.key_env)
        if not value:
            raise UserError(
                f"--key-env `{self.key_env}` is not set", hint=f"export {self.key_env}=... first"
            )
        return value

    async def find(self) -> Endpoint:
        from skep.bench.endpoint import find_endpoint

        if self.api not in ("openai", "ollama"):
            raise UserError(f"--api `{self.api}` is unknown", hint="choose openai or ollama")
        return await find_endpoint(self.address, self.model, key=self.key(), api=self.api)


def given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


# The hive and the store that are meant


def ask_hive(message: dict[str, Any], timeout_s: float | None = 10.0) -> dict[str, Any]:
    """Ask the hive that runs here."""
    from skep.supervisor.control import NotRunning, ask, socket_of
    from skep.supervisor.silent_hive import silent_holder

    paths = user_paths(os.environ)
    try:
        return ask(socket_of(paths.lock, paths.socket), message, timeout_s=timeout_s)
    except NotRunning:
        silent = silent_holder(paths)
        if silent is None:
            raise
        raise silent from None


def running_url(otherwise: str | None = "http://127.0.0.1:8400") -> str:
    """Return the URL of the hive that runs here; without one `otherwise`, None: an error."""
    try:
        return str(ask_hive({"op": "status"})["url"])
    except SkepError:
        if otherwise is None:
            raise
        return otherwise


def existing(
    none_yet: str = "there are no runs yet",
    hint: str = "`skep bench sweep` makes one",
    *,
    read_only: bool = True,
) -> Store:
    """Open the store. Where there is none yet, raise UserError: looking makes no file."""
    from skep.store.database import open_store

    path = user_paths(os.environ).store
    if not path.exists():
        raise UserError(none_yet, hint=hint)
    return open_store(path, read_only=read_only)


# Work that takes long


class Interrupted(SkepError):
    exit_code = 130

    def __init__(
        self,
        message: str = "interrupted",
        *,
        hint: str | None = "what was measured is kept: `skep runs` lists it",
    ) -> None:
        super().__init__(message, hint=hint)


def run_measuring(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Ctrl-C, TERM and a closed terminal end it alike: what was measured is kept, and said."""

    import asyncio
    import signal

    import uvloop

    from skep.errors import first_of

    async def run() -> T:
        task = asyncio.current_task()
        assert task is not None
        for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # As `nohup` sets it: the work is to go on.
            if signal.getsignal(sign) is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(sign, task.cancel)
        return await work()

    try:
        return uvloop.run(run())
    except asyncio.CancelledError:
        raise Interrupted from None
    except BaseExceptionGroup as group:
        raise first_of(group) from None
