"""Commands on engines: engine list, engine install, engine remove."""

from __future__ import annotations

from typing import Annotated

from skep.cli.options import JsonOption, argument, command, group, option
from skep.report.terminal import note, print_json

engine_app = group("engine", "Install engines, each in its own environment, and list them.", default="list")
EngineArgument = Annotated[str, argument("Engine: vllm, sglang or llama-server.")]


@command(engine_app, "skep engine list", name="list")
def list_engines(as_json: JsonOption = False) -> None:
    """List engines with version and path, and the command that installs each missing one."""
    import msgspec

    from skep.engines.discovery import VARIABLES
    from skep.engines.install import engine_status
    from skep.report.catalog import print_engines

    found = [engine_status(name) for name in VARIABLES]
    if as_json:
        print_json(msgspec.to_builtins(found, enc_hook=str))
    else:
        print_engines(found)


@command(engine_app, "skep engine install vllm")
def install(
    name: EngineArgument,
    version: Annotated[
        str | None, option("Version to install (default: the one skep tested).", metavar="VERSION")
    ] = None,
) -> None:
    """Install an engine into skep's data folder with uv or pip, after a check of driver and disk space."""
    from skep.engines.discovery import version_of
    from skep.engines.install import install_engine, named
    from skep.host.facts import read_host

    program = install_engine(named(name), version=version, driver=read_host().driver_version, say=note)
    note(f"{version_of(program)} is installed; `skep engine remove {name}` removes it")
    print(program.path)  # noqa: T201


@command(engine_app, "skep engine remove vllm")
def remove(name: EngineArgument) -> None:
    """Remove an engine that skep installed, with its environment."""
    from skep.engines.install import named, remove_engine

    note(f"removed {remove_engine(named(name))}")
