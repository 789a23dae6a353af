"""Real engines on this machine's CPU through skep, in turns: from `skep up` to ready, and what a
swarm gets.

    SKEP_VLLM=... SKEP_VLLM_CHECKPOINT=... SKEP_LLAMA_SERVER=... .venv/bin/python
    benchmarks/engines.py [--rounds 3]

`scripts/vllm_cpu_env.py`, `scripts/gguf_to_safetensors.py` and `skep engine install llama-server`
make what the variables name; an engine without its variable is left out. The same model and the
same shape of load for all; not the same arithmetic: vLLM computes in 32 bits here, llama.cpp in
four. So this shows that each is started, measured and stopped right, and what batching gives it,
and ranks nothing. Run it on an idle machine."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from skep.units import parse_int_list

MODEL = "smollm2-135m"
SLOTS = 8
CONTEXT = 1024
PROMPT_TOKENS = 64
OUTPUT_TOKENS = 64
RESULTS = Path(__file__).parent / "results" / "engines.json"
VLLM = (
    'env = { VLLM_CPU_KVCACHE_SPACE = "2" }\n[serve.options]\ndtype = "float32"\ngraphs = false\n'
)


def tables() -> dict[str, str]:
    """The body of a `[[serve]]` table for each engine that is here."""
    common = f'model = "{MODEL}"\nslots = {SLOTS}\ncontext = {CONTEXT}\n'
    found = {"embedded": f'{common}engine = "embedded"\n'}
    if os.environ.get("SKEP_LLAMA_SERVER"):
        found["llamacpp"] = f'{common}engine = "llamacpp"\n'
    if os.environ.get("SKEP_VLLM") and os.environ.get("SKEP_VLLM_CHECKPOINT"):
        found["vllm"] = (
            f'{common}engine = "vllm"\ncheckpoint = "{os.environ["SKEP_VLLM_CHECKPOINT"]}"\n{VLLM}'
        )
    return found


def measure(serve: str, levels: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="skep-engines-") as name:
        folder = Path(name)
        (folder / "skep.toml").write_text(f"[gateway]\nport = 0\n[[serve]]\n{serve}")
        env = {
            **os.environ,
            **{f"XDG_{kind}_HOME": str(folder / kind) for kind in ("CONFIG", "DATA", "STATE")},
        }
        env.pop("XDG_RUNTIME_DIR", None)

        def skep(*words: str) -> str:
            command = [sys.executable, "-m", "skep", *words]
            done = subprocess.run(
                command, env=env, cwd=folder, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise SystemExit(
                    f"`skep {' '.join(words)}` ended with {done.returncode}:\n{done.stderr}"
                )
            return done.stdout

        began = time.monotonic()
        ready = json.loads(skep("up", "-d", "--json"))
        ready_s = time.monotonic() - began
        try:
            sizes = (
                "--prompt-tokens",
                str(PROMPT_TOKENS),
                "--max-tokens",
                str(OUTPUT_TOKENS),
                "--fixed-output",
            )
            swept = skep(
                "bench",
                "sweep",
                "--json",
                "-c",
                levels,
                "--tasks",
                "16",
                "--runs",
                "2",
                "--budget",
                "6m",
                *sizes,
            )
        finally:
            skep("down", "--wait", "0s")
    return {
        "engine": ready["replicas"][0]["engine"],
        "ready_s": ready_s,
        "levels": json.loads(swept)["levels"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--levels", default="1,8")
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    parse_int_list(args.levels, name="--levels")
    found: dict[str, list[dict[str, Any]]] = {}
    for number in range(args.rounds):
        names = list(tables())
        for name in names[number % len(names) :] + names[: number % len(names)]:
            print(f"round {number + 1} of {args.rounds}: {name}", file=sys.stderr, flush=True)
            found.setdefault(name, []).append(measure(tables()[name], args.levels))
    right = f"{'eff tok/s':>10} {'runs':>14} {'TTFT p50 ms':>12} {'engine tok/s':>13}"
    print(f"{'engine':28} {'ready s':>8} {'C':>3} {right}")
    for rounds in found.values():
        for place, level in enumerate(rounds[0]["levels"]):
            print(line_of(rounds, place, level["concurrency"]))
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


def line_of(rounds: list[dict[str, Any]], place: int, concurrency: int) -> str:
    levels = [one["levels"][place] for one in rounds]
    speeds = [level["effective_tok_s"] for level in levels]
    ttft = median(level["ttft_ms"]["p50"] for level in levels)
    own = [level["engine_tok_s"] for level in levels if level["engine_tok_s"] is not None]
    runs = [run["effective_tok_s"] for level in levels for run in level["repeats"]]
    spread = f"{min(runs):.1f}..{max(runs):.1f}"
    ready = median(one["ready_s"] for one in rounds)
    told = f"{median(own):13.1f}" if own else f"{'–':>13}"
    if place == 0:
        first = f"{rounds[0]['engine']:28} {ready:8.1f}"
    else:
        first = f"{'':37}"
    return f"{first} {concurrency:3} {median(speeds):10.1f} {spread:>14} {ttft:12,.0f} {told}"


if __name__ == "__main__":
    main()
