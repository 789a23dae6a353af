"""What `skep doctor` finds in the facts of a host. Judges values; reads nothing itself."""

from __future__ import annotations

import re

from skep.host.gpu_checks import driver_finding, gpu_finding, lanes_finding, links_finding
from skep.records import Finding, HostFacts, Verdict
from skep.units import GIB, format_bytes

OLDEST_PYTHON = (3, 11)
MEMORY_PROBLEM_BYTES = 2 * GIB
MEMORY_WARNING_BYTES = 4 * GIB
DISK_SPARE_BYTES = 2 * GIB
OPEN_FILES_WARNING = 4096
OPEN_FILES_WANTED = 65536


def examine(facts: HostFacts, *, nvidia_error: str | None = None) -> list[Finding]:
    """All findings about this host, in the order they are printed. `nvidia_error` is `NvidiaReport.error`."""
    found = [
        python_finding(facts.python),
        cpu_finding(facts),
        memory_finding(facts.memory_bytes, facts.memory_available_bytes),
        open_files_finding(facts.open_files_soft, facts.open_files_hard),
        gpu_finding(facts.gpus, nvidia_error),
        driver_finding(facts.driver_version, facts.cuda_version, facts.gpus),
        lanes_finding(facts.gpus),
        links_finding(facts.gpus, facts.links),
    ]
    return [finding for finding in found if finding is not None]


def python_finding(version: str) -> Finding:
    match = re.match(r"(\d+)\.(\d+)", version)
    if match and (int(match[1]), int(match[2])) >= OLDEST_PYTHON:
        return Finding("python", Verdict.OK, version)
    return Finding("python", Verdict.PROBLEM, f"{version} is too old", "install Python 3.11 or newer")


def cpu_finding(facts: HostFacts) -> Finding:
    features = " ".join(facts.cpu_features) or "features unknown"
    cores = "1 core" if facts.cpu_cores == 1 else f"{facts.cpu_cores} cores"
    detail = f"{facts.cpu_model or facts.machine}, {cores}, {features}"
    x86 = facts.machine.lower() in {"x86_64", "amd64", "i686"}
    if not x86 or not facts.cpu_features or "avx2" in facts.cpu_features:
        return Finding("cpu", Verdict.OK, detail)
    return Finding(
        "cpu",
        Verdict.WARNING,
        f"{detail}; without AVX2 llama.cpp is slow",
        "in a virtual machine pass the host's CPU through (`-cpu host`); else run the model on a GPU or another host",
    )


def memory_finding(total_bytes: int | None, available_bytes: int | None) -> Finding:
    free = total_bytes if available_bytes is None else available_bytes
    if free is None:
        return Finding("memory", Verdict.OK, "size unknown")
    detail = f"{format_bytes(free)} available" + (f" of {format_bytes(total_bytes)}" if total_bytes else "")
    if free >= MEMORY_WARNING_BYTES:
        return Finding("memory", Verdict.OK, detail)
    verdict = Verdict.PROBLEM if free < MEMORY_PROBLEM_BYTES else Verdict.WARNING
    hint = f"end other programs or raise the container's limit until {format_bytes(MEMORY_WARNING_BYTES)} are free"
    return Finding("memory", verdict, detail, hint)


def open_files_finding(soft: int | None, hard: int | None) -> Finding:
    if soft is None:
        return Finding("open files", Verdict.OK, "no limit")
    if soft >= OPEN_FILES_WARNING:
        return Finding("open files", Verdict.OK, f"limit {soft}")
    detail = f"limit {soft}; each agent takes two or more"
    unit = f"`LimitNOFILE={OPEN_FILES_WANTED}` in the systemd unit"
    if hard is not None and hard < OPEN_FILES_WARNING:
        hint = f"the hard limit is {hard}: as root raise `nofile` in /etc/security/limits.conf, or set {unit}"
    else:
        wanted = OPEN_FILES_WANTED if hard is None else min(hard, OPEN_FILES_WANTED)
        hint = f"run `ulimit -n {wanted}` in the shell that starts skep, or set {unit}"
    return Finding("open files", Verdict.WARNING, detail, hint)


def disk_finding(path_label: str, free_bytes: int, need_bytes: int) -> Finding:
    """`need_bytes` is what is yet to be written there; 0 when nothing is."""
    detail = f"{format_bytes(free_bytes)} free in {path_label}"
    if free_bytes >= need_bytes + DISK_SPARE_BYTES:
        return Finding("disk", Verdict.OK, detail)
    verdict = Verdict.PROBLEM if free_bytes < need_bytes else Verdict.WARNING
    missing = format_bytes(need_bytes + DISK_SPARE_BYTES - free_bytes)
    hint = f"free {missing} more there, or choose a folder on another disk"
    return Finding("disk", verdict, f"{detail}, {format_bytes(need_bytes)} needed", hint)
