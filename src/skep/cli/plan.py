"""`skep plan`: which layout, does it fit, how fast with N agents, and why."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from skep.cli.options import JsonOption, command
from skep.cli.output import print_json, speak_plainly
from skep.paths import user_paths

GPU_HELP = (
    'The cards, e.g. "2x rtx-3090", "rtx-5090 + rtx-3090-ti", "4x rtx-3090: nvlink(0-1,2-3), pcie4x8(2,3)"; '
    "repeated: rigs side by side. Default: this machine."
)


def register(app: typer.Typer) -> None:
    command(app, 'skep plan qwen3.6-27b --gpu "2x rtx-3090" --agents 4 --explain')(plan)


@dataclass(frozen=True)
class PlanOptions:
    """The fields of `skep.deploy.plan_request.PlanFlags` as options."""

    model: Annotated[str, typer.Argument(help="Catalogue name, or path of a config.json, its folder or a GGUF file.")]
    gpu: Annotated[tuple[str, ...], typer.Option(metavar="RIG", help=GPU_HELP)] = ()
    gpu_spec: Annotated[
        tuple[str, ...],
        typer.Option(metavar="SPEC", help="A card that is not listed: name=x,memory=24GiB,bandwidth=936,fp16=71."),
    ] = ()
    link: Annotated[str | None, typer.Option(help="Link between all cards: nvlink, pcie, pcie4x8 or p2p.")] = None
    agents: Annotated[int, typer.Option(min=1, max=4096, help="Number of concurrent agents.")] = 4
    goal: Annotated[str, typer.Option(help="throughput, latency or context.")] = "throughput"
    slo: Annotated[str | None, typer.Option(help="Limits to meet at that many agents: ttft=1s,tpot=25ms.")] = None
    input_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a task's prompt.")] = 1024
    output_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a task's answer.")] = 512
    shape: Annotated[str, typer.Option(help="steady, burst or mixed.")] = "steady"
    engine: Annotated[
        tuple[str, ...], typer.Option(help="vllm, sglang, llamacpp or all; may be repeated. Default: vllm.")
    ] = ()
    quant: Annotated[str | None, typer.Option(help="Pin the weights' format: awq, fp8, nvfp4, bf16, q4_k_m.")] = None
    kv: Annotated[str | None, typer.Option(help="Pin the KV cache's type: bf16, fp8, fp8_e5m2, q8_0.")] = None
    tp: Annotated[int | None, typer.Option(min=1, help="Pin the tensor-parallel size.")] = None
    pp: Annotated[int | None, typer.Option(min=1, help="Pin the pipeline-parallel size.")] = None
    ep: Annotated[int | None, typer.Option(min=1, help="Pin the expert-parallel size; 1: unused.")] = None
    replicas: Annotated[int | None, typer.Option(min=1, help="Pin the number of engines.")] = None
    slots: Annotated[int | None, typer.Option(min=1, max=4096, help="Pin the sequences a replica decodes.")] = None
    context: Annotated[int | None, typer.Option(min=64, help="Pin the tokens of the longest sequence.")] = None
    utilization: Annotated[float | None, typer.Option(help="Pin the share of a card the engine may fill.")] = None
    spec: Annotated[str | None, typer.Option(help="Pin the speculation: mtp:3, ngram:4 or none.")] = None
    no_graphs: Annotated[bool, typer.Option("--no-graphs", help="Without CUDA graphs (eager mode).")] = False
    batched_tokens: Annotated[int | None, typer.Option(min=16, help="Pin the tokens of a step.")] = None
    version: Annotated[
        str | None, typer.Option("--engine-version", help="Version of the engine, such as 0.19.1; rules depend on it.")
    ] = None
    price: Annotated[
        tuple[float, ...],
        typer.Option(help="Price of one card, once for all or once for each --gpu; or write RIG@PRICE."),
    ] = ()


def plan(
    options: PlanOptions,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write an HTML page with charts.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show every term of a step and its formula.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Which layout, does it fit, how fast with N agents, and why."""
    from skep.cli.plan_output import check_page, print_plan, write_page
    from skep.deploy.plan_request import PlanFlags, answer_plan, document, nothing_fits

    speak_plainly()
    if html is not None:
        check_page(html)
    found = answer_plan(PlanFlags(**asdict(options)), user_paths(os.environ).store)
    if as_json:
        print_json(document(found, explain=explain))
    error = nothing_fits(found)
    if error is not None:
        raise error
    if not as_json:
        print_plan(found, explain=explain)
    if html is not None:
        write_page(found, html)
