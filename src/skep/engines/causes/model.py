"""Rules about the model: how it is cut over cards, its number formats, and what it is asked to do."""

from __future__ import annotations

from skep.engines.causes import steps as step
from skep.engines.causes.rule import Case, Rule, words

_GPU = ("vllm", "sglang")


def _has_fp8_kv(launch: object) -> bool:
    return str(getattr(getattr(launch, "options", None), "kv", None) or "").startswith("fp8")


def _capabilities(case: Case) -> dict[str, str]:
    return {
        name: f"{int(text) / 10:.1f}" for name in ("least", "has") if str(text := case.facts.get(name, "")).isdecimal()
    }


MODEL = (
    Rule(
        "heads",
        words(
            r"total number of attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size "
            r"\((?P<by>\d+)\)",
            r"assert self\.total_num_(?:kv_)?heads % (?:self\.)?\w*tp_size == 0",
            r"^assertionerror: (?P<heads>\d+) is not divisible by (?P<by>\d+)",
            r"vocab(?:ulary)? size (?P<heads>\d+) .*divisible by.* (?P<by>\d+)",
        ),
        ("ValueError: Total number of attention heads (32) must be divisible by tensor parallel size (5).",),
        "tp {tp} does not divide the model's heads or widths[ ({heads})]",
        "replicas instead of tp",
        (step.tp_of_heads,),
        only_if=lambda launch: launch.options.tp > 1,
    ),
    Rule(
        "widths",
        words(
            r"input size is not aligned with the quantized weight shape",
            r"is not divisible by weight quantization "
            r"block_[nk] ?= ?(?P<block>\d+)",
            r"is not divisible by\s+min_thread_[nk] ?= ?(?P<block>\d+)",
        ),
        (
            (
                "ValueError: The input size is not aligned with the quantized weight shape. This can be caused by too "
                "large tensor "
                "parallel size."
            ),
        ),
        "tp {tp} cuts the model's layers into parts that its quantization cannot take[ (blocks of {block})]",
        "ep on for a mixture of experts, or replicas instead of tp",
        (step.half_tp,),
        engines=_GPU,
        only_if=lambda launch: launch.options.tp > 1,
    ),
    Rule(
        "turboquant",
        words(r"turboquant KV cache is not supported for hybrid", r"unknown turboquant cache dtype: 'auto'"),
        ("NotImplementedError: TurboQuant KV cache is not supported for hybrid (attention + Mamba) models.",),
        "this version of vLLM has no TurboQuant KV for models with linear attention",
        "a version where it is in, or the Genesis patches",
        (step.kv_e5m2,),
    ),
    Rule(
        "kv-format",
        words(
            r"type fp8e4nv not supported in this architecture",
            r"fp8 kv cache is not supported by .*compute capability "
            r"(?P<has>[\d.]+)",
            r"fp8 kv[ -]cache (?:is )?not supported",
            r"kv_cache_dtype not supported",
        ),
        (
            (
                "ValueError: type fp8e4nv not supported in this architecture. The supported fp8 dtypes are "
                "('fp8e4b15', 'fp8e5')"
            ),
        ),
        "KV in {kv} does not run on this card: FP8 e4m3 needs SM 8.9 (RTX 40 or newer)",
        "another version of {engine}",
        (step.kv_e5m2, step.kv_own),
        engines=_GPU,
        only_if=_has_fp8_kv,
    ),
    Rule(
        "kv-flash",
        words(r"quantized V cache (?:requires|was requested)", r"V cache quantization requires flash_attn"),
        ("llama_init_from_model: quantized V cache requires flash_attn to be enabled",),
        "a quantized KV cache[ ({kv})] does not go without flash attention",
        "kv in 16 bit",
        (step.flash_own, step.kv_own),
    ),
    Rule(
        "kv-checkpoint",
        words(
            r"fp8_e5m2 kv-cache is not supported with fp8 checkpoints",
            r"[KV] cache type \S+ with block size \d+ does not divide",
        ),
        ("ValueError: fp8_e5m2 kv-cache is not supported with fp8 checkpoints.",),
        "this KV format[ ({kv})] does not go with the checkpoint",
        "kv in 16 bit",
        (step.kv_own,),
    ),
    Rule(
        "fp8-card",
        words(
            r"type fp8e4nv not supported in this architecture",
            r"_scaled_mm is only supported on cuda devices",
            r"fp8 .*(?:requires|only supported on).*compute capability",
        ),
        (
            (
                "RuntimeError: Worker failed with error 'type fp8e4nv not supported in this architecture', please "
                "check the stack"
            ),
        ),
        "FP8 weights do not run on this card: it has no FP8 units, which begin at SM 8.9 (RTX 40)",
        "AWQ or GPTQ weights, or a newer vLLM that unpacks FP8 in Marlin",
        engines=_GPU,
    ),
    Rule(
        "fp4-card",
        words(
            r"does not support (?P<method>nvfp4) quantization",
            r"quantization method (?P<method>\w*(?:fp4|mxfp4)\w*) is not supported for the current GPU\. minimum "
            r"capability: "
            r"(?P<least>\d+)\.\s+current capability: (?P<has>\d+)",
            r"(?P<method>mxfp4) quantized models is only supported on",
            r"no (?P<method>mxfp4|nvfp4)\b.* backend",
        ),
        (
            (
                "Value error, The quantization method mxfp4 is not supported for the current GPU. Minimum capability: "
                "100. Current "
                "capability: 86."
            ),
        ),
        "{method} weights do not run on this card[ (SM {has}, they want {least})] with this version",
        "AWQ or GPTQ weights, a GGUF in llama.cpp, or a newer version of {engine}",
        value_of=_capabilities,
        engines=_GPU,
    ),
    Rule(
        "quant-card",
        words(
            r"quantization method (?P<method>\S+) is not supported for the current GPU\. minimum capability: "
            r"(?P<least>\d+)\."
            r"\s+current capability: (?P<has>\d+)",
            r"quantization scheme is not supported for the current GPU\. (?:min|required) capability: "
            r"(?P<least>\d+)\.\s+"
            r"current capability: (?P<has>\d+)",
        ),
        (
            (
                "ValueError: The quantization method awq is not supported for the current GPU. Minimum capability: "
                "75. Current "
                "capability: 70."
            ),
        ),
        "this quantization[ ({method})] wants SM {least}, the card has SM {has}",
        "GPTQ weights, or a GGUF in llama.cpp",
        value_of=_capabilities,
    ),
    Rule(
        "bfloat16",
        words(
            r"bfloat16 is only supported on gpus with compute capability of at least 8\.0(?:\. your (?P<card>.+?) "
            r"gpu has)?"
        ),
        (
            (
                "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla "
                "T4 GPU has "
                "compute capability 7.5."
            ),
        ),
        "[{card}: ]the card has no bfloat16, which begins at SM 8.0 (RTX 30)",
        "a newer card",
        (step.dtype_half,),
    ),
    Rule(
        "float16-model",
        words(
            r"(?P<what>model type '[^']+') does not support float16",
            r"torch\.float16 is not supported for quantization method "
            r"(?P<what>\S+)\. supported dtypes: \[torch\.bfloat16",
        ),
        ("ValueError: The model type 'gemma3_text' does not support float16. Reason: Numerical instability.",),
        "float16 does not go with the {what}",
        "dtype bfloat16, on a card of SM 8.0 or newer",
    ),
    Rule(
        "quant-dtype",
        words(
            r"torch\.(?P<wrong>\w+) is not supported for quantization method (?P<method>\S+)\. supported dtypes: "
            r".*float16"
        ),
        ("ValueError: torch.bfloat16 is not supported for quantization method awq. Supported dtypes: [torch.float16]",),
        "{method} wants float16, not {wrong}",
        "the Marlin kind of it, where the card has one",
        (step.dtype_half,),
        engines=_GPU,
    ),
    Rule(
        "quant-other",
        words(r"quantization method specified in the model config \((?P<method>[^)]*)\) does not match"),
        (
            (
                "ValueError: Quantization method specified in the model config (gptq) does not match the quantization "
                "method "
                "specified in the `quantization` argument (awq)."
            ),
        ),
        "the checkpoint is {method}[, not {quant}]",
        'quant = "{method}"',
        (step.quant_own,),
    ),
    Rule(
        "quant-unknown",
        words(
            r"unknown quantization method: (?P<method>\S+?)\.? must be one of",
            r"cannot find the config file for (?P<method>\w+)",
            r"unsupported quantization(?: method)?:? (?P<method>\S+)",
        ),
        ("ValueError: Unknown quantization method: exl3. Must be one of ['awq', 'fp8', 'gptq'].",),
        "{engine} does not read the quantization {method}",
        "one that it lists, or another engine",
        (step.quant_own,),
    ),
    Rule(
        "context-model",
        words(
            r"max_model_len \((?P<context>\d+)\) is greater than the derived max_model_len \([\w.]+=(?P<most>\d+)",
            r"context_length \((?P<context>\d+)\) is greater than the derived context_length \((?P<most>\d+)\)",
        ),
        (
            (
                "ValueError: User-specified max_model_len (65536) is greater than the derived max_model_len "
                "(max_position_embeddings=32768 or model_max_length=None in model's config.json)."
            ),
        ),
        "a context of {context} tokens is beyond the {most} that the model was made for",
        "rope scaling in the model's configuration",
        (step.context_of_model,),
    ),
    Rule(
        "batch-gguf",
        words(
            r"batch must be large enough to hold the sampled and draft tokens",
            r"GGML_ASSERT\(n_outputs_max <= cparams\.n_outputs_max\) failed",
            r"get_sub_batch: failed to add token \d+ at index",
        ),
        (
            (
                'server-context.cpp:576: GGML_ASSERT(add_ok && "batch must be large enough to hold the sampled and '
                'draft tokens") failed'
            ),
        ),
        "a batch[ of {batch} tokens] does not hold a token of {slots} slots[ with {depth} drafted each]",
        "fewer slots[, or fewer than {depth} drafted tokens]",
        (step.batch_own, step.no_draft),
        engines=("llamacpp", "embedded"),
    ),
    Rule(
        "batched-slots",
        words(
            r"max_num_batched_tokens \((?P<batched>\d+)\) must be greater than or equal to max_num_seqs "
            r"\((?P<seqs>\d+)\)"
        ),
        ("ValueError: max_num_batched_tokens (512) must be greater than or equal to max_num_seqs (1024).",),
        "{batched} batched tokens are fewer than {seqs} slots",
        "batched_tokens {seqs} or more",
        (step.slots_to_batched,),
    ),
    Rule(
        "batched-context",
        words(r"max_num_batched_tokens \((?P<batched>\d+)\) is smaller than max_model_len \((?P<context>\d+)\)"),
        ("ValueError: max_num_batched_tokens (2048) is smaller than max_model_len (32768).",),
        "without chunked prefill a prompt of {context} tokens must fit into {batched} batched tokens",
        "batched_tokens {context}",
        (step.chunks_on,),
    ),
    Rule(
        "draft",
        words(
            r"MTP speculative decoding layer \d+ weights",
            r"no module or parameter named '[^']*' in \w*(?:MTP|eagle)\w*",
            r"^keyerror: '[^']*(?:mtp|eagle)[^']*'",
            r"weights were not initialized from checkpoint: .*mtp",
            r"unsupported speculative method",
            r"num_speculative_tokens was provided but without speculative model",
            r"failed to create MTP context",
            r"failed to load draft model",
            r"failed to initialize speculative decoding",
            r"speculative decoding is not (?:yet )?supported",
            r"num_speculative_tokens:?\d* must be divisible by",
        ),
        ("ValueError: MTP speculative decoding layer 78 weights missing from checkpoint.",),
        "speculation[ with {draft}] is not possible: the checkpoint has no such layers, or the engine no such method",
        "a checkpoint that kept its MTP layers, or a draft that fits the model",
        (step.no_draft,),
    ),
)
