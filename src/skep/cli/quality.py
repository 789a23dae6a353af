"""Commands that judge answers: bench mixed, quality."""

from __future__ import annotations

from typing import Annotated

import typer

from skep.cli import bench_options as of
from skep.cli.bench import bench
from skep.cli.serve import JsonOption


def register(_app: typer.Typer) -> None:
    bench.command(epilog="Example: skep bench mixed --form sustained --repeats 5")(mixed)
    bench.command(epilog="Example: skep bench quality --bank drills:1 --concurrency 1,4,8")(quality)


def mixed(
    url: of.Url = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Model name; default: the only one served there. Several are compared.")
    ] = None,
    form: Annotated[
        str, typer.Option(help="published: each side task once; sustained: again and again until the primary ends.")
    ] = "published",
    repeats: Annotated[int, typer.Option(min=1, help="Runs of every level, in turns.")] = 3,
    levels: Annotated[
        str, typer.Option(help="Any of 1, 2, 3 and 5: the primary task with 0, 1, 2 or 4 side tasks.")
    ] = "1,2,3,5",
    seed: of.Seed = None,
    key_env: of.KeyEnv = None,
    timeout: of.Timeout = of.FIFTEEN_MINUTES,
    as_json: JsonOption = False,
) -> None:
    """A coding conversation with side tasks beside it; every answer is executed, not grepped."""
    from skep.cli.quality_run import MixedOptions, run_mixed_command

    wishes = MixedOptions(
        url=url or of.running_url(),
        models=tuple(model or ()),
        key_env=key_env,
        form=form,
        repeats=repeats,
        levels=levels,
        seed=seed,
        timeout=timeout,
    )
    raise typer.Exit(run_mixed_command(wishes, as_json=as_json))


def quality(
    url: of.Url = None,
    model: of.Model = None,
    bank: Annotated[
        str, typer.Option(help="humaneval, drills, drills:1 (easy) to drills:5, or a JSONL file: docs/quality.md.")
    ] = "drills",
    concurrency: of.Concurrency = "1,4,8",
    delta: Annotated[
        str, typer.Option(help="The smallest loss that matters, in points: 3 is from 60 % to 57 %.")
    ] = "3",
    items: Annotated[
        int | None, typer.Option(min=1, help="Number of items of the bank; default: as many as needed.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of every item in every arm.")] = 1,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Longest answer in tokens, instead of each item's own limit; for models that reason."),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="Sampling temperature; 0 is greedy.")] = 0.0,
    budget: Annotated[
        str | None, typer.Option(help="Time limit of the whole run; what is not done by then is left out.")
    ] = None,
    seed: of.Seed = None,
    key_env: of.KeyEnv = None,
    timeout: of.Timeout = of.FIFTEEN_MINUTES,
    as_json: JsonOption = False,
) -> None:
    """Are answers as good at C=N as at C=1? The same items in both, judged by execution, with a bound on the loss."""
    from skep.cli.bench_common import EndpointOptions
    from skep.cli.quality_run import QualityOptions, run_quality_command

    wishes = QualityOptions(
        target=EndpointOptions(url or of.running_url(), model, key_env),
        bank=bank,
        concurrency=concurrency,
        delta=delta,
        items=items,
        repeats=repeats,
        temperature=temperature,
        budget=budget,
        seed=seed,
        timeout=timeout,
        max_tokens=max_tokens,
    )
    raise typer.Exit(run_quality_command(wishes, as_json=as_json))
