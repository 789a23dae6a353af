"""Commands on engines: engine list, engine install, engine remove."""

from __future__ import annotations

from typing import Annotated

from skep.cli.options import Interrupted, JsonOption, argument, command, group, option
from skep.report.terminal import note, print_json

engine_app = group(
    "engine", "Install engines, each in its own environment, and list them.", default="list"
)
STARTS_AGAIN = "what was installed before is still there; the same command starts again"
EngineArgument = Annotated[str, argument("Engine: vllm, sglang or llama-server.")]


@command(engine_app, "skep engine list", name="list")
def list_engines(as_json: JsonOption = False) -> None:
    """List engines with version and path, and the command that installs each missing one."""
    import msgspec

    from skep.catalog.engines import engines_with_program
    from skep.engines.install import engine_status
    from skep.report.catalog import print_engines

    statuses = [engine_status(name) for name in engines_with_program()]
    if as_json:
        print_json(msgspec.to_builtins(statuses, enc_hook=str))
    else:
        print_engines(statuses)


@command(engine_app, "skep engine install vllm")
def install(
    name: EngineArgument,
    version: Annotated[
        str | None, option("Version to install (default: the one skep tested).", metavar="VERSION")
    ] = None,
    dry_run: Annotated[
        bool, option("Check the machine and say what would be installed; install nothing.")
    ] = False,
) -> None:
    """Install an engine into skep's data folder with uv or pip, after a check of driver and disk
    space.
    """
    from skep.engines.discovery import version_of
    from skep.engines.install import install_engine, named, plan_install
    from skep.host.facts import read_host

    engine = named(name)
    driver = read_host().driver_version
    if dry_run:
        print(*plan_install(engine, version=version, driver=driver).lines, sep="\n")  # noqa: T201
        return
    try:
        program = install_engine(engine, version=version, driver=driver, say=note)
    except (KeyboardInterrupt, SystemExit):
        raise Interrupted("interrupted, nothing installed", hint=STARTS_AGAIN) from None
    note(f"{version_of(program)} is installed; `skep engine remove {name}` removes it")
    print(program.path)  # noqa: T201


@command(engine_app, "skep engine remove vllm")
def remove(name: EngineArgument) -> None:
    """Remove an engine that skep installed, with its environment."""
    from skep.engines.install import named, remove_engine

    note(f"removed {remove_engine(named(name))}")
