"""Options that several bench commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Url = Annotated[str | None, typer.Option(help="Base URL, with or without /v1; default: what `skep up` runs.")]
Model = Annotated[str | None, typer.Option(help="Model name; default: the only one served there.")]
KeyEnv = Annotated[str | None, typer.Option(help="Environment variable with the endpoint's API key.")]
Api = Annotated[str, typer.Option(help="openai, or ollama for Ollama's own API, which tells its durations.")]
Concurrency = Annotated[str, typer.Option("--concurrency", "-c", help="Concurrent agents, one level each.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Longest answer in tokens.")]
FixedOutput = Annotated[bool, typer.Option("--fixed-output", help="Let every answer run to --max-tokens.")]
Size = Annotated[str, typer.Option(help="Prompt size: short (~45 tokens), medium (~250) or long (~1000).")]
PromptTokens = Annotated[
    int | None, typer.Option(min=1, help="Prompts of this many tokens, counted by the engine; instead of --size.")
]
Seed = Annotated[int | None, typer.Option(help="Random seed of the prompts; default: a new one.")]
Timeout = Annotated[str, typer.Option(help="Time limit of one request.")]
Prompts = Annotated[bool, typer.Option("--prompts/--no-prompts", help="Store prompts and answers.")]
Budget = Annotated[str, typer.Option(help="Time limit of the whole run; what is not done by then is left out.")]
Precision = Annotated[str, typer.Option(help="Repeat a level until its 95 % interval is within this.")]
Processes = Annotated[int | None, typer.Option(min=1, help="Load processes; default: one, more where needed.")]
TimedProcesses = Annotated[int, typer.Option(min=1, help="Load processes.")]
Price = Annotated[float | None, typer.Option(min=0, help="Price of a kWh; adds the cost of a million tokens.")]

LOCAL = "http://127.0.0.1:8400"
FIFTEEN_MINUTES = "15m"


def running_url(otherwise: str | None = LOCAL) -> str:
    """Of the hive that runs here; without one `otherwise`, None: an error."""
    import os

    from skep.errors import SkepError
    from skep.paths import user_paths
    from skep.supervisor.control import ask, socket_of

    paths = user_paths(os.environ)
    try:
        return str(ask(socket_of(paths.lock, paths.socket), {"op": "status"})["url"])
    except SkepError:
        if otherwise is None:
            raise
        return otherwise


def given_options(context: typer.Context) -> frozenset[str]:
    """Those that the user wrote, by the names of their parameters."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE")
