"""Commands on what was measured: runs, report, bench compare, ab, matrix, export."""

from __future__ import annotations

import csv
import io
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from skep.bench.records import SweepSummary
from skep.bench.stored_run import JUDGED, TIMED, load_run
from skep.bench.token_times import tpot_ms
from skep.cli import bench_common as of
from skep.cli.bench import bench
from skep.cli.output import note
from skep.cli.run_list import existing, write_whole
from skep.cli.serve import JsonOption
from skep.cli.sweep import sweep_json
from skep.errors import UserError
from skep.store.records import Request, Run
from skep.store.verdicts import Verdict

RunName = Annotated[str, typer.Argument(help="A run's id, the beginning of one, or `last` (`last~1`: the one before).")]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: skep runs --json")(runs)
    app.command(epilog="Example: skep report last -o report.html")(report)
    bench.command(epilog="Example: skep bench compare 20261114 last --threshold 5%")(compare)
    bench.command(epilog="Example: skep bench ab http://127.0.0.1:8001 http://127.0.0.1:8002 -c 1,4,8")(ab)
    bench.command(epilog="Example: skep bench matrix rigs.toml -o rigs.html")(matrix)
    bench.command(epilog="Example: skep bench export last --format csv")(export)


def runs(
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="How many, newest first.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Stored benchmark runs, newest first."""
    from skep.cli.run_list import print_runs
    from skep.paths import user_paths

    print_runs(user_paths(os.environ).store, limit, as_json=as_json)


def report(
    run: Annotated[
        list[str] | None, typer.Argument(help="A run's id, the beginning of one, or `last`; several: compared.")
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The HTML file to write; .svg writes the picture alone.")
    ] = Path("report.html"),
) -> None:
    """Write one self-contained HTML file with the pictures and the tables of a run, or of several side by side."""
    from skep.cli.run_list import write_comparison, write_report
    from skep.paths import user_paths

    names, store = run or ["last"], user_paths(os.environ).store
    if len(names) == 1:
        write_report(store, names[0], output)
    else:
        write_comparison(store, names, output)


def compare(
    a: Annotated[
        str | None, typer.Argument(help="The earlier run; default: the last but one of the kind of the last.")
    ] = None,
    b: Annotated[str | None, typer.Argument(help="The later run; default: the last of the kind of A.")] = None,
    threshold: Annotated[str, typer.Option(help="A loss beyond this ends with exit code 4.")] = "5%",
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Compare runs whose prompts or answers differ in length.")
    ] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Also write an HTML page or .svg.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Is B better than A? One row a level, and a verdict; exit code 4 where B is worse."""
    from skep.cli.compare import run_compare_command
    from skep.paths import user_paths

    store = user_paths(os.environ).store
    code = run_compare_command(store, (a, b), threshold=threshold, anyway=anyway, output=output, as_json=as_json)
    raise typer.Exit(code)


def ab(
    url_a: Annotated[str, typer.Argument(metavar="A", help="Base URL.")],
    url_b: Annotated[str, typer.Argument(metavar="B", help="Base URL.")],
    model: Annotated[str | None, typer.Option(help="Of both; default: the only one that is served.")] = None,
    model_b: Annotated[str | None, typer.Option(help="Of B, where it has another name.")] = None,
    concurrency: of.Concurrency = "1,4",
    tasks: Annotated[int | None, typer.Option(min=1, help="Per level and run.")] = None,
    runs_per_level: Annotated[
        int | None, typer.Option("--runs", min=2, help="Exactly so many pairs of each level.")
    ] = None,
    precision: Annotated[str, typer.Option(help="Of the ratio: pairs are measured until it is within this.")] = "3%",
    budget: of.Budget = "15m",
    threshold: Annotated[str, typer.Option(help="A loss of B beyond this ends with exit code 4.")] = "5%",
    max_tokens: of.MaxTokens = 128,
    fixed_output: of.FixedOutput = False,
    size: of.SizeOption = "short",
    prompt_tokens: of.PromptTokens = None,
    seed: of.Seed = None,
    key_env: of.KeyEnv = None,
    timeout: of.Timeout = of.FIFTEEN_MINUTES,
    processes: of.Processes = None,
    as_json: JsonOption = False,
) -> None:
    """Two endpoints in turns on the same tasks: what the machine does meanwhile befalls both."""
    from skep.cli.bench_common import Target, workload_of
    from skep.cli.compare import run_ab_command

    workload = workload_of(
        shape="steady",
        size=size,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        fixed_output=fixed_output,
        seed=seed,
    )
    targets = (Target(url_a, model, key_env), Target(url_b, model_b or model, key_env))
    limits = (concurrency, tasks, runs_per_level, precision, budget, timeout)
    code = run_ab_command(targets, workload, limits, processes=processes, threshold=threshold, as_json=as_json)
    raise typer.Exit(code)


def matrix(
    file: Annotated[Path, typer.Argument(help="A TOML file: [[config]] with a name and a url, start or run.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Also write an HTML page, .svg, .md or .csv.")
    ] = None,
    processes: of.Processes = None,
    as_json: JsonOption = False,
) -> None:
    """Configurations against concurrencies, measured one after the other or taken from stored runs."""
    from skep.cli.compare import run_matrix_command

    run_matrix_command(file, output, processes=processes, as_json=as_json)


def export(
    run: RunName = "last",
    form: Annotated[str, typer.Option("--format", help="csv, markdown or json.")] = "markdown",
    requests: Annotated[
        bool, typer.Option("--requests", help="Every request instead of the levels; csv or json.")
    ] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A file; default: standard output.")] = None,
) -> None:
    """A run's levels, or its requests, for a spreadsheet or a README."""
    from skep.paths import user_paths

    run_export_command(user_paths(os.environ).store, run, form, output, requests=requests)


FORMATS = ("markdown", "csv", "json")


def run_export_command(store_path: Path, name: str, form: str, output: Path | None, *, requests: bool) -> None:
    if form not in FORMATS:
        raise UserError(f"--format `{form}` is unknown", hint=f"choose one of {', '.join(FORMATS)}")
    if requests and form == "markdown":
        raise UserError("--requests has too many rows for Markdown", hint="add --format csv or --format json")
    if output is not None and (output.is_dir() or not output.parent.is_dir()):
        raise UserError(f"--output `{output}` is not a place for a file", hint="name a file in a folder that exists")
    with existing(store_path) as store:
        run, summary, rows = load_run(store, name)
        verdicts = store.verdicts(run.id)
    if run.kind in JUDGED and not requests:
        hint = f"`skep report {run.id}` has the figures; --requests --format csv gives every request with its verdict"
        raise UserError(f"run `{run.id}` ({run.kind}) is about answers, not about levels of speed", hint=hint)
    text = _requests(rows, verdicts, form) if requests else _levels(run, summary, form)
    if output is None:
        sys.stdout.write(text)
    else:
        write_whole(output, text)
        note(f"{run.id} written to {output}")


def _levels(run: Run, summary: SweepSummary, form: str) -> str:
    from skep.report.tables import contention_table, csv_text, level_rows, markdown, speedup_table

    if form == "json":
        return _json({"run": run.id, "model": run.model, **sweep_json(summary)})
    if form == "csv":
        return csv_text(level_rows(summary))
    entries: list[tuple[str, SweepSummary | str]] = [(run.model, summary)]
    tables = [_readable(run, summary)]
    if run.kind not in TIMED:
        tables.append(contention_table(entries))
    if summary.speedups is not None:
        tables.append(speedup_table(entries))
    simulated = "SIMULATED. " if run.simulated else ""
    origin = f"{simulated}{run.model}, run {run.id}, skep {run.skep_version}.\n"
    return "\n".join([origin, *(markdown(table) for table in tables)])


def _readable(run: Run, summary: SweepSummary) -> Any:
    """The level table of a README: what fits beside each other. Classes of traffic follow the whole."""
    from skep.report.checks import left_out_sentences
    from skep.report.levels import runs_text, spread_text
    from skep.report.tables import Table
    from skep.report.timed import level_names

    names: list[Any] = [level.concurrency for level in summary.levels]
    if run.kind in TIMED:
        names = [*level_names(run, summary.levels), *(level.traffic for level in summary.classes)]
    levels = (*summary.levels, *summary.classes) if run.kind in TIMED else summary.levels
    rows = tuple(
        (
            name,
            level.effective_tok_s,
            spread_text(level),
            level.plateau_tok_s,
            level.task_tok_s,
            level.contention_pct,
            level.ttft_ms.p50 if level.ttft_ms else None,
            level.ttft_ms.p95 if level.ttft_ms else None,
            level.tpot_ms.p50 if level.tpot_ms else None,
            runs_text(level),
            level.requests,
            level.failed,
        )
        for name, level in zip(names, levels, strict=True)
    )
    first = "load" if run.kind in TIMED else "C"
    columns = (
        first, "eff. tok/s", "95 %", "plateau", "task tok/s", "contention", "TTFT p50 ms", "TTFT p95 ms",
        "TPOT p50 ms", "runs", "requests", "failed",
    )  # fmt: skip
    units = ("", "tok/s", "", "tok/s", "tok/s", "%")
    titles = names[: len(summary.levels)] if run.kind in TIMED else ()
    return Table("Levels", columns, rows, units, tuple(left_out_sentences(summary.levels, titles)))


def _requests(rows: list[Request], verdicts: list[Verdict], form: str) -> str:
    known = {(one.level, one.repeat, one.index): one for one in verdicts}
    records = [_record(row) for row in rows]
    if known:
        found = (known.get((row.level, row.repeat, row.index)) for row in rows)
        records = [{**record, **_verdict(one)} for record, one in zip(records, found, strict=True)]
    if form == "json":
        return _json(records)
    out = io.StringIO()
    names = [*_record(Request(0, 0, 0, "", 0.0, 0.0)), *(_verdict(None) if known else ())]
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def _record(row: Request) -> dict[str, Any]:
    """Without the texts and the arrivals, which are long; they are in the store."""
    left_out = ("arrivals_s", "prompt", "answer", "reasoning", "engine")
    plain = {key: value for key, value in asdict(row).items() if key not in left_out}
    engine = {f"engine_{key}": value for key, value in asdict(row.engine).items()}
    return {**plain, **engine, "tpot_ms": tpot_ms(row), "events": len(row.arrivals_s)}


def _verdict(verdict: Verdict | None) -> dict[str, Any]:
    if verdict is None:
        return dict.fromkeys(("item", "outcome", "detail", "keywords", "checker"))
    return {
        "item": verdict.item,
        "outcome": verdict.outcome.value,
        "detail": verdict.detail,
        "keywords": verdict.keywords,
        "checker": verdict.checker,
    }


def _json(document: Any) -> str:
    import json

    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"
