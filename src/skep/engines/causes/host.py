"""Rules about the machine: its disk, shared memory, files, threads, ports, and what the kernel does to a process."""

from __future__ import annotations

import re
import signal

from skep.engines.causes.rule import Case, Rule, words

_XID = {
    "13": "an exception in a kernel", "31": "a memory page fault", "43": "a stopped channel", "48": "a memory error",
    "62": "an internal error", "74": "an NVLink error", "79": "the card has fallen off the bus",
    "94": "a contained memory error", "95": "an uncontained memory error", "119": "its processor did not answer",
    "120": "its processor failed",
}  # fmt: skip


def _xid(case: Case) -> dict[str, str]:
    known = _XID.get(str(case.facts.get("xid")))
    return {} if known is None else {"what": known}


HOST = (
    Rule(
        "shm",
        words(
            r"error while (?:creating|attaching to) shared memory segment (?P<segment>/dev/shm/\S*)",
            r"insufficient space in /dev/shm: (?P<wanted>\d+) MiB required, (?P<free>\d+) MiB free",
            r"no space left on device.*?/dev/shm|/dev/shm.*?no space left on device",
            r"this might be caused by insufficient shared memory",
        ),
        ("Error while creating shared memory segment /dev/shm/nccl-EoOvZr (size 7340384)",),
        "shared memory (/dev/shm) is too small[: {wanted} MiB wanted, {free} MiB free]",
        "in a container `--shm-size 16g` or `--ipc=host`; else `mount -o remount,size=16g /dev/shm`",
    ),
    Rule(
        "disk",
        words(r"no space left on device|\[errno 28\]|disk quota exceeded|not enough (?:free )?disk space"),
        ("OSError: [Errno 28] No space left on device",),
        "the disk is full",
        "free some room, or put caches elsewhere (HF_HOME, VLLM_CACHE_ROOT, OLLAMA_MODELS)",
    ),
    Rule(
        "open-files",
        words(r"too many open files|\[errno 24\]"),
        ("OSError: [Errno 24] Too many open files",),
        "too many open files",
        "`ulimit -n 65536` before the start",
        final=False,
    ),
    Rule(
        "threads",
        words(
            r"can't start new thread|pthread_create failed|pthread_create: resource temporarily unavailable",
            r"(?:blockingioerror|fork|clone).{0,40}resource temporarily unavailable",
            r"libgomp: thread creation failed",
        ),
        ("RuntimeError: can't start new thread",),
        "the machine gives it no more threads or processes",
        "`ulimit -u` higher, in a container `--pids-limit -1`, or fewer threads than {threads}",
        final=False,
    ),
    Rule(
        "port",
        words(
            r"error while attempting to bind on address \('(?P<host>[^']*)', (?P<bound>\d+)",
            r"couldn't bind HTTP server socket, hostname: (?P<host>\S+), port: (?P<bound>\d+)",
            r"listen tcp (?P<host>\S+):(?P<bound>\d+): bind: address already in use",
            r"port (?P<bound>\d+) is in use",
            r"\[errno 98\]|\beaddrinuse\b|address already in use|port is already in use",
            r" at (?P<bound>\d+) is not available in \d+ seconds",
        ),
        ("ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): address already in use",),
        "the port[ {bound}] is in use",
        "another port, or end what listens there (`ss -ltnp`)",
        final=False,
        unless=re.compile("retrying with a new port|trying port|waiting for", re.IGNORECASE),
    ),
    Rule(
        "xid",
        words(r"\bNVRM: Xid \([^)]*\): (?P<xid>\d+)", r"\bXid[ :=]+(?P<xid>\d{2,3})\b"),
        ("NVRM: Xid (PCI:0000:01:00): 79, pid=4711, GPU has fallen off the bus.",),
        "the driver reported Xid {xid}[: {what}]",
        "look at power, heat and seating of the card, then reboot; `dmesg | grep Xid` tells the rest",
        final=False,
        value_of=_xid,
    ),
    Rule(
        "card-fault",
        words(r"uncorrectable ECC error|\bGPU is lost\b|unable to determine the device handle for GPU"),
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",),
        "the card itself failed",
        "`dmesg | grep Xid` and `nvidia-smi -q`; a reboot may bring it back",
        final=False,
    ),
    Rule(
        "killed-child",
        words(
            r"failed core proc\(s\): \{[^}]*: -9\b",
            r"died(?: unexpectedly)?[ ,(]+exit ?code: -9\b",
            r"\bsignal(?: terminated)?: killed\b",
            r"was killed by signal: ?9|\(sent by kernel oom|oom-kill",
        ),
        (
            (
                "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "
                "{'EngineCore_DP0': -9}"
            ),
        ),
        "a process of the engine was killed (SIGKILL), by the kernel for want of memory or by somebody",
        "more memory or swap, fewer programs beside it, or a smaller model; `dmesg | grep -i oom` tells",
        final=False,
    ),
    Rule(
        "sigbus-links",
        words(
            r"fatal python error: bus error|\*\*\* SIGBUS received|(?<!pcie )\bbus error\b|: -7\b\}", r"exit code: -7\b"
        ),
        ("Fatal Python error: Bus error",),
        "a bus error (SIGBUS) with p2p {p2p} and tp {tp}: vLLM 0.17 died so loading dense models without NVLink",
        "let the cards use their link (p2p unset), another version of the engine, or one card",
        final=False,
        signals=(signal.SIGBUS,),
        only_if=lambda launch: launch.options.cards > 1 and launch.options.p2p == "off",
        value_of=lambda case: {"p2p": case.launch.options.p2p},
    ),
    Rule(
        "sigbus",
        words(
            r"fatal python error: bus error|\*\*\* SIGBUS received|(?<!pcie )\bbus error\b|: -7\b\}", r"exit code: -7\b"
        ),
        ("Fatal Python error: Bus error",),
        "a bus error (SIGBUS): /dev/shm is too small, or a file it had mapped was cut short",
        "in a container `--shm-size 16g` or `--ipc=host`; check the disk and the weights",
        final=False,
        signals=(signal.SIGBUS,),
    ),
    Rule(
        "instruction",
        words(r"\billegal instruction\b"),
        ("Illegal instruction (core dumped)",),
        "the engine was built for a newer processor than this one",
        "a build for this processor, compiled here or without AVX-512",
        signals=(signal.SIGILL,),
    ),
    Rule(
        "segfault",
        words(r"fatal python error: segmentation fault|^segmentation fault|segfault encountered|: -11\b\}"),
        ("Fatal Python error: Segmentation fault",),
        "the engine crashed (SIGSEGV)",
        "another version of the engine, or fewer of its special options",
        final=False,
        signals=(signal.SIGSEGV,),
    ),
    Rule(
        "core-gone",
        words(
            r"engine core exited unexpectedly",
            r"worker proc \S+ died unexpectedly",
            r"\bscheduler (?:process )?(?:is dead|died)",
            r"received sigquit from a child process",
        ),
        ("WARNING 11-15 15:30:52 [core_client.py:817] MPClient: engine core exited unexpectedly; starting cleanup",),
        "a process of the engine ended without a word: killed, or crashed outside Python",
        "`dmesg | tail` tells whether the kernel killed it",
        final=False,
        warnings=True,
        engines=("vllm", "sglang"),
    ),
)
