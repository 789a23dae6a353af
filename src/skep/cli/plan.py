"""`skep plan`: which layout, does it fit, how fast with N agents, and why."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar

from skep.cli.options import ROOT, JsonOption, argument, command, option
from skep.files import OutputFile
from skep.paths import user_paths
from skep.report.terminal import note, print_json

GPU_HELP = (
    'The cards, e.g. "2x rtx-3090", "rtx-5090 + rtx-3090-ti", "4x rtx-3090: nvlink(0-1,2-3), pcie4x8(2,3)"; '
    "repeated: rigs side by side. Default: this machine."
)


@dataclass(frozen=True)
class PlanOptions:
    """The fields of `skep.deploy.plan_request.PlanFlags` as options."""

    PANELS: ClassVar[dict[str, str]] = {
        "Cards": "gpu gpu_spec link price",
        "Work": "agents goal slo input_tokens output_tokens shape",
        "Choices to pin": "engine version quant kv tp pp ep replicas slots context utilization spec no_graphs "
        "batched_tokens vision",
    }

    model: Annotated[str, argument("Catalogue name, or path of a config.json, its folder or a GGUF file.")]
    gpu: Annotated[tuple[str, ...], option(GPU_HELP, metavar="RIG")] = ()
    gpu_spec: Annotated[
        tuple[str, ...], option("A card that is not listed: name=x,memory=24GiB,bandwidth=936,fp16=71.", metavar="SPEC")
    ] = ()
    link: Annotated[str | None, option("Link between all cards: nvlink, pcie, pcie4x8 or p2p.")] = None
    agents: Annotated[int, option("Number of concurrent agents.", "-c", "--concurrency", min=1, max=4096)] = 4
    goal: Annotated[str, option("throughput, latency or context.")] = "throughput"
    slo: Annotated[str | None, option("Limits to meet at that many agents: ttft=1s,tpot=25ms.")] = None
    input_tokens: Annotated[
        int | None, option("Tokens of a task's prompt. Default: an agent's, 16384.", "--prompt-tokens", min=1)
    ] = None
    output_tokens: Annotated[int | None, option("Tokens of a task's answer. Default: an agent's, 1024.", min=1)] = None
    shape: Annotated[str, option("steady, burst or mixed.")] = "steady"
    engine: Annotated[
        tuple[str, ...], option("vllm, sglang, llamacpp or all; may be repeated. Default: all that fit.")
    ] = ()
    quant: Annotated[str | None, option("Pin the weights' format: awq, fp8, nvfp4, bf16, q4_k_m.")] = None
    kv: Annotated[str | None, option("Pin the KV cache's type: bf16, fp8, fp8_e5m2, q8_0.")] = None
    tp: Annotated[int | None, option("Pin the tensor-parallel size.", min=1)] = None
    pp: Annotated[int | None, option("Pin the pipeline-parallel size.", min=1)] = None
    ep: Annotated[int | None, option("Pin the expert-parallel size; 1: unused.", min=1)] = None
    replicas: Annotated[int | None, option("Pin the number of engines.", min=1)] = None
    slots: Annotated[int | None, option("Pin the sequences a replica decodes.", min=1, max=4096)] = None
    context: Annotated[int | None, option("Pin the tokens of the longest sequence.", min=64)] = None
    utilization: Annotated[float | None, option("Pin the share of a card the engine may fill.", "--memory-share")] = (
        None
    )
    spec: Annotated[str | None, option("Pin the speculation: mtp:3, ngram:4 or none.")] = None
    vision: Annotated[bool, option("Load the vision tower, where the checkpoint has one.", "--vision")] = False
    no_graphs: Annotated[bool, option("Without CUDA graphs (eager mode).", "--no-graphs")] = False
    batched_tokens: Annotated[int | None, option("Pin the tokens of a step.", min=16)] = None
    version: Annotated[
        str | None, option("Version of the engine, such as 0.19.1; rules depend on it.", "--engine-version")
    ] = None
    price: Annotated[
        tuple[float, ...],
        option("Price of one card, once for all or once for each --gpu; or write RIG@PRICE.", "--price-card"),
    ] = ()


@command(ROOT, 'skep plan qwen3.6-27b --gpu "2x rtx-3090" --concurrency 4 --explain')
def plan(
    options: PlanOptions,
    html: Annotated[OutputFile | None, option("Also write an HTML page with charts.", metavar="FILE")] = None,
    more: Annotated[bool, option("Also say why, what was dropped, and every term of the memory.", "--more")] = False,
    commands: Annotated[bool, option("Also print the engines' own command lines.", "--commands")] = False,
    explain: Annotated[bool, option("As --more, with every term of a step and its formula.", "--explain")] = False,
    as_json: JsonOption = False,
) -> None:
    """Which layout, does it fit, how fast with N agents, and why."""
    from skep.deploy.plan_request import PlanFlags, answer_plan, document, nothing_fits

    if html is not None:
        html.checked()
    found = answer_plan(PlanFlags(**asdict(options)), user_paths(os.environ).store)
    if as_json:
        print_json(document(found, explain=explain))
    error = nothing_fits(found)
    if error is not None:
        raise error
    from skep.report.plan import plan_page, print_plan

    if not as_json:
        print_plan(found, more=more or explain, commands=commands, explain=explain)
    if html is not None:
        html.write(plan_page(document(found, explain=True)))
        note(f"wrote {html}")
