"""Rules about memory of the cards and of the machine: which phase of a start ran out, and by how much.

Texts of vLLM 0.4 to 0.32, SGLang 0.4 to 0.5, llama.cpp of 2024 to 2026 and Ollama 0.3 to 0.12, as their sources and
their users' reports have them.
"""

from __future__ import annotations

import re

from skep.engines.causes import steps as step
from skep.engines.causes.rule import Rule, words

GGUF = ("llamacpp", "embedded", "ollama")
_SIZE = r"[\d.]+ [KMGT]i?B"
TORCH_NUMBERS = words(
    rf"tried to allocate (?P<tried>{_SIZE})\. GPU (?P<gpu>\d+) has a total capacity of (?P<total>{_SIZE}) of which "
    rf"(?P<free>{_SIZE}) is free",
    rf"tried to allocate (?P<tried>{_SIZE}) \(GPU (?P<gpu>\d+); (?P<total>{_SIZE}) total capacity; {_SIZE} already "
    rf"allocated; (?P<free>{_SIZE}) free",
    rf"tried to allocate (?P<tried>{_SIZE})",
)
_OUT = words(
    r"\bout ?of ?memory ?error\b.*out of memory",
    r"\bCUDA out of memory\. tried to allocate",
    r"\bCUDA error: out of memory",
    r"\bHIP out of memory\. tried to allocate",
    r"cuda failure.{0,6}out of memory",
)
_WANTED = "[: {tried} wanted, {free} of {total} free on GPU {gpu}]"
_READY = re.compile(
    r"application startup complete|uvicorn running on|server is fired up|server is listening|engine \d+: avg prompt|"
    r"listening on http|all slots are idle"
)
_EXAMPLE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 23.69 GiB "
    "of which 211.25 MiB is free."
)
_SMALLER = "a smaller quantization, or more cards"

MEMORY = (
    Rule(
        "gpu-busy",
        words(
            r"free memory on device (?:\S+ )?\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than "
            r"desired "
            r"GPU memory utilization \((?P<share>[\d.]+), (?P<wish>[\d.]+) GiB\)"
        ),
        (
            (
                "ValueError: Free memory on device (21.3/23.69 GiB) on startup is less than desired GPU memory "
                "utilization "
                "(0.92, 21.8 GiB)."
            ),
        ),
        "something else is on the card: {free} of {total} GiB are free, {wish} GiB (memory_share {share}) were wanted",
        "end what `nvidia-smi` shows there",
        (step.share_of_free,),
        final=False,
    ),
    Rule(
        "gpu-unbalanced",
        words(r"the memory capacity is unbalanced\. some GPUs may be occupied"),
        ("RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.",),
        "something else is on one of the cards: their free memory differs by more than a tenth",
        "end what `nvidia-smi` shows there, or name other gpus",
        final=False,
        engines=("sglang",),
    ),
    Rule(
        "kv-too-small",
        words(
            r"to serve at least one request with the models?'?s? max seq len \((?P<context>\d+)\)",
            r"the model's max seq len \((?P<context>\d+)\) is larger than the maximum number of tokens that can be "
            r"stored in KV cache \((?P<fits>\d+)\)",
        ),
        (
            (
                "ValueError: To serve at least one request with the model's max seq len (32768), (4.26 GiB KV cache is "
                "needed, which is larger than the available KV cache memory (2.80 GiB). Based on the available "
                "memory, the "
                "estimated maximum model length is 21504."
            ),
        ),
        "no room in the KV cache for one request of {context} tokens[: {need} GiB are needed, {have} GiB are there]",
        "[raise memory_share from {filled} to {higher}, or ]kv in 8 bit",
        (step.context_that_fits,),
        numbers=words(
            r"\((?P<need>[\d.]+) GiB KV cache is needed, which is larger than the available KV cache memory \("
            r"(?P<have>[\d.]+) GiB\)(?:.*?estimated maximum model length is (?P<fits>\d+))?"
        ),
    ),
    Rule(
        "no-kv",
        words(r"no available memory for the cache blocks"),
        (
            (
                "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
                "initializing the engine."
            ),
        ),
        "weights and the trial run left no memory for the KV cache[ within memory_share {share}]",
        "[raise memory_share from {filled} to {higher}, or ]take " + _SMALLER,
        (step.no_draft, step.smaller_chunks),
    ),
    Rule(
        "no-kv-sglang",
        words(
            r"not enough memory\. please try to increase --mem-fraction-static",
            r"loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=(?P<share>[\d.]+\d)",
            r"not enough GPU memory for hybrid \(mamba/linear-attention\) state cache",
            r"hybrid \(mamba/linear-attention\) state cache is too small to serve any",
        ),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",),
        "the weights left no memory for the KV cache[ within memory_share {share}]",
        "[raise memory_share from {filled} to {higher}, or ]take " + _SMALLER,
        (step.no_draft, step.many_slots_halved),
        engines=("sglang",),
    ),
    Rule(
        "oom-sampler",
        words(r"CUDA out of memory occurred when warming up (?:sampler|pooler) with (?P<requests>\d+) dummy requests"),
        (
            (
                "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests. Please try "
                "lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
            ),
        ),
        "out of GPU memory while sampling for {requests} sequences was tried",
        "take " + _SMALLER,
        (step.many_slots_halved, step.lower_share),
    ),
    Rule(
        "oom-graphs",
        _OUT,
        ('  File "gpu_model_runner.py", line 6900, in capture_model', _EXAMPLE),
        "out of GPU memory while CUDA graphs were captured" + _WANTED,
        "take " + _SMALLER,
        (step.lower_share_a_step, step.many_slots_halved, step.graphs_off),
        numbers=TORCH_NUMBERS,
        near=re.compile(
            r"\bin (?:\w*capture_model|capture_graph|capture_one_batch_size|_capture_cudagraphs|"
            r"profile_cudagraph_memory)\b|capture cuda graph failed|cuda_?graph_runner\.py",
            re.IGNORECASE,
        ),
        engines=("vllm", "sglang"),
    ),
    Rule(
        "oom-linear-attention",
        _OUT,
        ('  File "fla/ops/chunk.py", line 20, in chunk_gated_delta_rule_fwd', _EXAMPLE),
        "out of GPU memory in the scratch of linear attention (GDN), which the engine's budget does not count"
        + _WANTED,
        "take " + _SMALLER,
        (step.lower_share, step.smaller_chunks, step.fewer_slots),
        numbers=TORCH_NUMBERS,
        near=re.compile(
            r"gated_?delta|\bfla/ops\b|gdn_linear_attn|_warmup_prefill_kernels|\bsolve_tril\b", re.IGNORECASE
        ),
        engines=("vllm", "sglang"),
    ),
    Rule(
        "oom-draft",
        _OUT,
        ('  File "qwen3_5_mtp.py", line 120, in forward', '  File "worker.py", line 9, in profile_run', _EXAMPLE),
        "out of GPU memory in the trial run with the draft {draft}: its layers hold experts of their own" + _WANTED,
        "take " + _SMALLER,
        (step.no_draft, step.smaller_chunks),
        numbers=TORCH_NUMBERS,
        near=re.compile(r"\w_mtp\.py|mtp\.layers|\bdrafter\b|spec_decode/|eagle\.py|loading drafter", re.IGNORECASE),
        only_if=lambda launch: launch.options.draft is not None,
        engines=("vllm", "sglang"),
    ),
    Rule(
        "oom-serving",
        _OUT,
        ("INFO:     Application startup complete.", _EXAMPLE),
        "out of GPU memory while it served" + _WANTED,
        "take " + _SMALLER,
        (step.lower_share, step.fewer_slots, step.shorter_context),
        numbers=TORCH_NUMBERS,
        anywhere=re.compile(_READY.pattern, re.IGNORECASE),
        final=False,
    ),
    Rule(
        "oom-kv",
        _OUT,
        ('  File "gpu_model_runner.py", line 7300, in initialize_kv_cache', _EXAMPLE),
        "out of GPU memory while the KV cache was laid out" + _WANTED,
        "end what else `nvidia-smi` shows on the card",
        (step.lower_share,),
        numbers=TORCH_NUMBERS,
        near=re.compile(
            r"\bin (?:initialize_kv_cache\w*|initialize_from_config|_allocate_kv_cache\w*|init_memory_pool|"
            r"_create_buffers)\b"
        ),
        engines=("vllm", "sglang"),
    ),
    Rule(
        "oom-profile",
        _OUT,
        ('  File "gpu_worker.py", line 300, in determine_available_memory', _EXAMPLE),
        "out of GPU memory in the trial run" + _WANTED,
        "take " + _SMALLER,
        (step.no_draft, step.smaller_chunks, step.many_slots_halved),
        numbers=TORCH_NUMBERS,
        near=re.compile(r"\bin (?:profile_run|_dummy_run|determine_available_memory|determine_num_available_blocks)\b"),
        engines=("vllm", "sglang"),
    ),
    Rule(
        "oom-load",
        _OUT,
        ('  File "gpu_model_runner.py", line 3500, in load_model', _EXAMPLE),
        "out of GPU memory while weights were loaded" + _WANTED,
        "take " + _SMALLER + " (tp {tp} -> {more_tp})",
        (step.no_draft,),
        numbers=TORCH_NUMBERS,
        near=re.compile(
            r"\bin (?:load_model|load_weights|create_weights|process_weights_after_loading|initialize_model|"
            r"get_model)\b"
        ),
        engines=("vllm", "sglang"),
    ),
    Rule(
        "kv-gguf",
        words(r"failed to allocate buffer for (?:kv|rs) cache", r"failed to allocate (?:\S+ )?buffer for kv cache"),
        ("llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",),
        "no memory for the KV cache of {slots} slots with {context} tokens each",
        "take " + _SMALLER + ", or kv q8_0",
        (step.fewer_slots, step.shorter_context),
        engines=GGUF,
    ),
    Rule(
        "compute-gguf",
        words(r"failed to allocate compute (?:pp )?buffers"),
        ("graph_reserve: failed to allocate compute buffers",),
        "no memory for the compute buffers of {slots} slots with {context} tokens each",
        "take " + _SMALLER,
        (step.fewer_slots, step.shorter_context),
        engines=GGUF,
        unless=re.compile("retrying without pipeline parallelism"),
        last=True,
    ),
    Rule(
        "weights-gguf",
        words(
            r"unable to allocate (?P<where>\S+) buffer", r"alloc_tensor_range: failed to allocate (?P<where>\S+) buffer"
        ),
        ("llama_model_load: error loading model: unable to allocate CUDA0 buffer",),
        "no memory for the weights on {where}[: {wanted} MiB in one piece]",
        "take a smaller quantization, more cards, or fewer layers on the card (`--n-gpu-layers`)",
        engines=GGUF,
        numbers=words(r"allocating (?P<wanted>[\d.]+) MiB on device"),
    ),
    Rule(
        "oom-gguf-serving",
        words(r"\b(?:CUDA|ROCm|HIP) error: out of memory", r"cudaMalloc failed: out of memory"),
        ("CUDA error: out of memory",),
        "out of GPU memory while it computed, with {slots} slots of {context} tokens each",
        "take " + _SMALLER,
        (step.fewer_slots, step.shorter_context),
        final=False,
        engines=GGUF,
        last=True,
        unless=re.compile("retrying without pipeline parallelism|fitting params"),
    ),
    Rule(
        "ram-ollama",
        words(
            r"model requires more system memory \((?P<need>[\d.]+) GiB\) than is available \((?P<have>[\d.]+) GiB\)",
            r"model requires more system memory than is",
        ),
        ('{"error":"model requires more system memory (7.5 GiB) than is available (5.2 GiB)"}',),
        "not enough memory in the machine[: {need} GiB are needed, {have} GiB are there]",
        "take a smaller quantization, or end other programs",
        (step.fewer_slots, step.shorter_context),
        final=False,
        engines=("ollama",),
    ),
    Rule(
        "ram-gguf",
        words(
            r"alloc_buffer: failed to allocate buffer of size (?P<bytes>\d+)",
            r"^std::bad_alloc|what\(\): +std::bad_alloc",
        ),
        ("ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 34359738368",),
        "not enough memory in the machine[: {gib} GiB in one piece were wanted]",
        "take a smaller quantization, or end other programs",
        (step.fewer_slots, step.shorter_context),
        engines=GGUF,
        value_of=lambda case: {"gib": f"{n / 2**30:.1f}"} if (n := case.number("bytes")) is not None else {},
    ),
    Rule(
        "ram-python",
        words(
            r"^(?:[\w.]+\.)?MemoryError\b", r"defaultcpuallocator: (?:can't|not enough) .*allocate", r"^std::bad_alloc"
        ),
        (
            (
                "RuntimeError: [enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you "
                "tried to "
                "allocate 8589934592 bytes."
            ),
        ),
        "not enough memory in the machine",
        "end other programs, or take a smaller quantization",
        (step.shorter_context,),
        final=False,
    ),
    Rule(
        "pool-sglang",
        words(
            r"\b(?:prefill|decode) out of memory\. try to lower your batch size",
            r"out of memory even after retracting all other requests",
            r"alloc_req_slots runs out of memory",
        ),
        ("RuntimeError: Decode out of memory. Try to lower your batch size.",),
        "the KV cache ran out while it served {slots} requests at once",
        "take " + _SMALLER,
        (step.fewer_slots, step.shorter_context),
        final=False,
        engines=("sglang",),
    ),
    Rule(
        "workspace-locked",
        words(r"workspace is locked but allocation"),
        (
            (
                "RuntimeError: Workspace is locked but allocation from 'modular_kernel.py:1084:_allocate_buffers' "
                "requires "
                "448.06 MB, current size is 256.00 MB. Workspace growth is not allowed after locking."
            ),
        ),
        "{slots} sequences at once want more workspace than was set aside at the start"
        "[: {wanted} MB wanted, {there} MB there]",
        "take " + _SMALLER,
        (step.slots_by_workspace, step.smaller_chunks),
        engines=("vllm",),
        numbers=words(r"requires (?P<wanted>[\d.]+) MB,\s+current size is (?P<there>[\d.]+) MB"),
        final=False,
    ),
    Rule(
        "oom",
        _OUT,
        (_EXAMPLE,),
        "out of GPU memory" + _WANTED,
        "take " + _SMALLER,
        (step.lower_share, step.fewer_slots, step.shorter_context),
        numbers=TORCH_NUMBERS,
        final=False,
    ),
)
