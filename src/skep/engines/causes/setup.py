"""Rules about how engine, driver and cards were put together: versions, libraries, flags, links between cards."""

from __future__ import annotations

import re

from skep.engines.causes import steps as step
from skep.engines.causes.rule import Rule, words

_GPU = ("vllm", "sglang")
_GOES_ON = re.compile(r"\bggml_cuda_init\b")  # llama.cpp says it and computes on the CPU
_OWN_ALL_REDUCE = "the engine's own all-reduce failed, as is known of SM 8.6 (RTX 3090) while graphs are captured"

SETUP = (
    Rule(
        "driver-804",
        words(r"error 804|forward compatibility was attempted on non supported hw"),
        (
            (
                "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was "
                "attempted on "
                "non supported HW"
            ),
        ),
        "the driver is too old for the CUDA that the engine was built with (error 804)",
        "a newer driver (CUDA 12.9 and 13.0 want 575 and 580 or newer), or a build for the driver's CUDA",
        warnings=True,
        unless=_GOES_ON,
    ),
    Rule(
        "driver-old",
        words(
            r"cuda driver version is insufficient for cuda runtime version",
            r"the nvidia driver on your system is too old \(found version (?P<found>\d+)\)",
            r"provided PTX was compiled with an unsupported toolchain",
            r"no cuda-capable driver|system has unsupported display driver / cuda driver combination",
        ),
        ("RuntimeError: CUDA driver version is insufficient for CUDA runtime version",),
        "the driver is too old for the CUDA that the engine was built with[ (it knows CUDA {found})]",
        "a newer driver, or a build of the engine for the driver's CUDA (`nvidia-smi` shows which)",
        warnings=True,
        unless=_GOES_ON,
    ),
    Rule(
        "fabric",
        words(r"error 802: system not yet initialized"),
        ("RuntimeError: Error 802: system not yet initialized",),
        "the NVLink switches are not up",
        "start nvidia-fabricmanager in the driver's version",
        warnings=True,
    ),
    Rule(
        "no-kernel",
        words(
            r"no kernel image is available for execution on the device",
            r"has no device code compatible with CUDA arch (?P<arch>\d+)",
            r"with CUDA capability (?P<arch>sm_\d+) is not compatible with the current PyTorch installation",
        ),
        ("torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",),
        "the engine has no kernels for this card[ ({arch})]: it was built for older or for newer ones",
        "a build for this card (CUDA 12.8 or newer for RTX 50, an older one or llama.cpp for cards before SM 7.0)",
        warnings=True,
    ),
    Rule(
        "no-gpu",
        words(
            r"no CUDA GPUs are available",
            r"failed to infer device type",
            r"no CUDA-capable device is detected",
            r"No accelerator \(CUDA, .*is available",
            r"no CUDA devices found via torch",
            r"found no nvidia driver on your system",
            r"nvml shared library not found",
        ),
        ("RuntimeError: No CUDA GPUs are available",),
        "the engine sees no GPU",
        "check `nvidia-smi`, CUDA_VISIBLE_DEVICES and, in a container, `--gpus all`",
        engines=_GPU,
    ),
    Rule(
        "too-few-gpus",
        words(
            r"world size \((?P<world>\d+)\) is larger than the number of available gpus \((?P<cards_there>\d+)\)",
            r"invalid device ordinal",
            r"invalid value for main_gpu: (?P<main>\d+) \(available devices: (?P<cards_there>\d+)\)",
        ),
        ("ValueError: World size (4) is larger than the number of available GPUs (2) in this node.",),
        "tp {tp} needs {cards} cards[, the engine sees {cards_there}]",
        "name cards that are there (`nvidia-smi -L`)",
        (step.tp_of_cards,),
    ),
    Rule(
        "torch-mismatch",
        words(
            r"operator torchvision::nms does not exist",
            r"(?:importerror|oserror): .*undefined symbol: \w+",
            r"partially initialized module 'torchvision' has no attribute",
            r"pytorch and (?:torchvision|torchaudio) (?:has|were|have) .*different CUDA",
        ),
        ("RuntimeError: operator torchvision::nms does not exist",),
        "parts of the engine's Python do not fit its torch",
        "install torch, torchvision and the engine in the versions of one release, in a fresh environment",
        unless=re.compile(r"failed to import from vllm\._C", re.IGNORECASE),
    ),
    Rule(
        "library",
        words(
            r"^(?:[\w.]*(?:importerror|oserror|runtimeerror)): .*?(?P<library>lib[\w.+-]+\.so[\w.]*): cannot open "
            r"shared "
            r"object file",
            r"error while loading shared libraries: (?P<library>\S+?):",
        ),
        ("ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",),
        "the library {library} is missing",
        "libcuda comes with the driver, libcudart and the others with CUDA {cuda}; or LD_LIBRARY_PATH to where "
        "they are",
        value_of=lambda case: {"cuda": _cuda_of(str(case.facts.get("library", "")))},
        unless=re.compile("libnccl-net"),
    ),
    Rule(
        "module",
        words(
            r"^(?:[\w.]*\.)?modulenotfounderror: no module named '(?P<module>[^']+)'",
            r"^importerror: cannot import name '(?P<module>[^']+)' from",
        ),
        ("ModuleNotFoundError: No module named 'flashinfer'",),
        "the engine's Python lacks `{module}`, or has another version of it",
        "install it there, or the engine anew in a fresh environment",
    ),
    Rule(
        "flag",
        words(
            r"error: unrecognized arguments: (?P<flag>.+)",
            r"error: invalid argument: (?P<flag>\S+)",
            r"error: unknown (?:shorthand )?flag: (?P<flag>.+)",
        ),
        ("vllm: error: unrecognized arguments: --max-sequences 8",),
        "this version of {engine} does not know `{flag}`",
        "leave it out, or take another version",
    ),
    Rule(
        "flag-value",
        words(
            r"error: argument (?P<flag>\S+?):? (?:invalid choice: |expected |invalid )(?P<value>.+)",
            r'error while handling argument "(?P<flag>[^"]+)": (?P<value>.+)',
        ),
        ("vllm serve: error: argument --dtype: invalid choice: 'fp17' (choose from auto, bfloat16, float16)",),
        "{engine} does not take this value of `{flag}`",
        "a value that it takes",
    ),
    Rule(
        "custom-all-reduce",
        words(r"custom_all_reduce(?:_v2)?\.cuh?:\d+", r"failed: cuda error .*custom_all_reduce"),
        ("Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:455 'invalid argument'",),
        _OWN_ALL_REDUCE,
        "PYTORCH_CUDA_ALLOC_CONF without expandable_segments:True",
        (step.all_reduce_off,),
        engines=_GPU,
    ),
    Rule(
        "all-reduce-graphs",
        words(
            r"\berror: (?:cuda error: )?(?:invalid argument|invalid resource handle|operation not permitted|operation "
            r"failed due to a previous error during capture)"
        ),
        (
            '  File "custom_all_reduce.py", line 190, in register_graph_buffers',
            "RuntimeError: CUDA error: invalid argument",
        ),
        _OWN_ALL_REDUCE,
        "PYTORCH_CUDA_ALLOC_CONF without expandable_segments:True",
        (step.all_reduce_off,),
        engines=_GPU,
        near=re.compile(r"register_graph_buffers|get_graph_buffer_ipc_meta|share_graph_inputs|_C_custom_ar"),
    ),
    Rule(
        "nccl-timeout",
        words(
            r"watchdog caught collective operation timeout: .*?(?:ran for (?P<ms>\d+) milliseconds|$)",
            r"RPC call to \w+ timed out",
            r"scheduler watchdog timeout",
        ),
        (
            (
                "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, "
                "Timeout(ms)=600000) ran for "
                "600059 milliseconds before timing out."
            ),
        ),
        "the cards did not answer each other[ for {s} s]",
        "IOMMU off in the machine's setup where cards have no NVLink",
        (step.p2p_off, step.all_reduce_off),
        final=False,
        value_of=lambda case: {} if (ms := case.number("ms")) is None else {"s": ms // 1000},
    ),
    Rule(
        "nccl",
        words(
            r"\bNCCL error\b",
            r"\bnccl(?:UnhandledCuda|System|Internal|InvalidUsage|Remote)Error\b",
            r"\bNCCL WARN\b.*(?:p2p|peer access|cuda failure)",
            r"peer access is not supported between these two devices",
        ),
        ("torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled system error",),
        "the cards could not be joined (NCCL)",
        "NCCL_DEBUG=INFO tells which link; `nvidia-smi topo -m` shows them",
        (step.p2p_off,),
        final=False,
    ),
    Rule(
        "illegal-access",
        words(
            r"an illegal memory access was encountered",
            r"device-side assert triggered",
            r"unspecified launch failure",
            r"misaligned address",
        ),
        ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered",),
        "a kernel of the engine failed on the card",
        "another version of the engine, graphs off to see whether they are why, and `dmesg | grep Xid` for the card",
        final=False,
    ),
)


def _cuda_of(library: str) -> str:
    version = re.search(r"\.so\.(\d+)", library)
    known = version is not None and library.startswith(("libcudart", "libcublas", "libnvrtc", "libcublasLt"))
    return version[1] if version is not None and known else "and the engine"
