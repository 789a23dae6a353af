"""`skep plan`: which layout, does it fit, how fast with N agents, and why."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from skep.cli.options import ROOT, JsonOption, argument, command, option
from skep.errors import UserError
from skep.files import OutputFile
from skep.paths import Paths, user_paths
from skep.report.terminal import count_progress, note, print_json

if TYPE_CHECKING:
    from skep.deploy.plan_request import PlanAnswer

GPU_HELP = (
    'GPUs to plan for: "2x rtx-3090", "rtx-5090 + rtx-3090-ti" or "4x rtx-3090: pcie4x8, '
    'nvlink(0-1,2-3)". '
    "Repeat it to compare rigs; 4x rtx-3090@750 is a price of 750 for each card (default: "
    "this machine)."
)


@dataclass(frozen=True)
class PlanOptions:
    """The fields of `skep.deploy.plan_request.PlanFlags` as options."""

    PANELS: ClassVar[dict[str, str]] = {
        "GPUs": "gpu link",
        "Load and goal": "agents load goal slo input_tokens output_tokens",
        "Choices to pin": (
            "engine version quant kv tp pp ep replicas slots context utilization spec graphs "
            "vision"
        ),
    }

    model: Annotated[
        str,
        argument(
            (
                "Model name from `skep catalog models`, a preset, or path of a config.json, its "
                "folder or a GGUF file."
            ),
        ),
    ]
    gpu: Annotated[tuple[str, ...], option(GPU_HELP, metavar="RIG")] = ()
    link: Annotated[str | None, option("Link between all GPUs: nvlink, pcie, pcie4x8 or p2p.")] = (
        None
    )
    agents: Annotated[
        int | None,
        option(
            "Number of concurrent agents (default: 4; of a preset, those of its best figure).",
            "-c",
            "--concurrency",
            min=1,
            max=4096,
        ),
    ] = None
    load: Annotated[
        str | None,
        option(
            "What agents send: sessions of a coding agent (coding), of one with a short prompt "
            "(small), or single requests of which nothing is cached (task)."
        ),
    ] = None
    goal: Annotated[str, option("Optimise for throughput or latency.")] = "throughput"
    slo: Annotated[str | None, option("Latency limits to meet, such as ttft=1s,tpot=25ms.")] = None
    input_tokens: Annotated[
        int | None,
        option("Prompt length in tokens (default: 16384, an agent's).", "--prompt-tokens", min=1),
    ] = None
    output_tokens: Annotated[
        int | None, option("Answer length in tokens (default: 1024, an agent's).", min=1)
    ] = None
    engine: Annotated[
        tuple[str, ...],
        option("vllm, sglang, llamacpp or all; repeatable (default: those that load the model)."),
    ] = ()
    quant: Annotated[
        str | None, option("Pin the weight format: awq, fp8, nvfp4, bf16, q4_k_m.")
    ] = None
    kv: Annotated[str | None, option("Pin the KV cache type: bf16, fp8, fp8_e5m2, q8_0.")] = None
    tp: Annotated[int | None, option("Pin the tensor-parallel size.", min=1)] = None
    pp: Annotated[int | None, option("Pin the pipeline-parallel size.", min=1)] = None
    ep: Annotated[int | None, option("Pin the expert-parallel size; 1 turns it off.", min=1)] = (
        None
    )
    replicas: Annotated[int | None, option("Pin the number of replicas.", min=1)] = None
    slots: Annotated[
        int | None, option("Pin the sequences each replica decodes at a time.", min=1, max=4096)
    ] = None
    context: Annotated[
        int | None, option("Pin the maximum sequence length in tokens.", min=64)
    ] = None
    utilization: Annotated[
        float | None, option("Pin the share of GPU memory to fill: 0.9.", "--memory-share")
    ] = None
    spec: Annotated[str | None, option("Pin speculative decoding: mtp:3, ngram:4 or none.")] = None
    graphs: Annotated[
        bool | None,
        option(
            (
                "Record CUDA graphs, or run eager with --no-graphs (default: graphs; a preset's "
                "own choice)."
            ),
            "--graphs/--no-graphs",
        ),
    ] = None
    vision: Annotated[bool, option("Load the vision tower, if the checkpoint has one.")] = False


@command(ROOT, 'skep plan qwen3.6-27b --gpu "2x rtx-3090" --concurrency 4 --more')
def plan(
    options: PlanOptions,
    html: Annotated[
        OutputFile | None,
        option("Also write an HTML page with charts to this file.", metavar="FILE"),
    ] = None,
    more: Annotated[
        bool, option("Also print reasons, rejected layouts and all memory terms.")
    ] = False,
    commands: Annotated[bool, option("Also print the engines' own command lines.")] = False,
    formats: Annotated[
        bool,
        option(
            "Print one row a weight format and one a KV type instead: size, kernel, speed, "
            "verdict and why."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show which layout of a model fits, how fast it runs with N agents, and why."""
    from skep.deploy.commands import document
    from skep.deploy.plan_request import nothing_fits

    if formats:
        _formats(options, as_json=as_json, alone=html is None and not (more or commands))
        return
    if html is not None:
        html.checked()
    answer = _answer(options, user_paths(os.environ))
    if as_json:
        print_json(document(answer))
    error = nothing_fits(answer)
    if error is not None:
        raise error
    from skep.report.plan import print_plan
    from skep.report.plan_page import plan_page

    if not as_json:
        print_plan(answer, in_full=more, commands=commands)
    if html is not None:
        html.write(plan_page(document(answer)))
        note(f"wrote {html}")


def _answer(options: PlanOptions, paths: Paths) -> PlanAnswer:
    """Return the answer for a preset of that name, else for a model. As with `skep up`, a preset
    goes first.
    """
    from skep.config.presets import find_preset, presets_folder
    from skep.deploy.kv_caveat import gives_small_kv
    from skep.deploy.plan_request import AGENTS, PlanFlags, answer_plan
    from skep.deploy.preset_plan import agents_of, answer_preset

    given = asdict(options)
    preset = find_preset(options.model, presets_folder(paths))
    if preset is None:
        flags = PlanFlags(**{**given, "agents": options.agents or AGENTS})
        answer = answer_plan(flags, paths.store)
    else:
        flags = PlanFlags(**{**given, "agents": options.agents or agents_of(preset)})
        answer = answer_preset(preset, flags, paths.store)
    if not any(gives_small_kv(plan) for choice in answer.choices for plan in choice.plans[:1]):
        return answer
    from skep.quality.kv_evidence import with_kv_evidence

    return with_kv_evidence(answer, paths.store)


def _formats(options: PlanOptions, *, as_json: bool, alone: bool) -> None:
    """Plan the model in every format of one rig."""
    from msgspec import to_builtins

    from skep.config.presets import find_preset, presets_folder
    from skep.deploy.formats import answer_formats
    from skep.deploy.plan_request import AGENTS, PlanFlags
    from skep.report.formats import print_formats

    if not alone:
        raise UserError(
            "--formats prints its tables only", hint="leave --html, --more and --commands out"
        )
    paths = user_paths(os.environ)
    preset = find_preset(options.model, presets_folder(paths))
    if preset is not None:
        message = (
            f"--formats plans a model, and `{preset.name}` is a preset with a format of its own"
        )
        raise UserError(message, hint=f"skep plan {preset.model} --formats")
    flags = PlanFlags(**{**asdict(options), "agents": options.agents or AGENTS})
    with count_progress("formats planned") as advance:
        answer = answer_formats(flags, paths.store, advance)
    if as_json:
        print_json(to_builtins(answer))
    else:
        print_formats(answer)
