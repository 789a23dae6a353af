"""Programs that commands find on PATH: an nvidia-smi that tells of two 3090s, a vLLM that becomes
the fake engine.
"""

import sys
from pathlib import Path

CAPTURED = Path(__file__).parent.parent / "host" / "captured" / "3090x2-nvlink"
SMI = f"""#!/bin/sh
case "$1" in
--query-gpu=index,memory*)
    printf 'index, memory.total, memory.used\\n0, 24576, 300\\n1, 24576, 300\\n' ;;
--query-gpu=*) cat "{CAPTURED}/query.csv" ;;
topo) cat "{CAPTURED}/topo.txt" ;;
*) cat "{CAPTURED}/header.txt" ;;
esac
"""


def vllm_program(first=""):
    """A vLLM that is none: it knows vLLM's flags, does `first`, and becomes the fake engine."""
    return f"""#!{sys.executable}
import os, sys
words = sys.argv
if "--help" in " ".join(words):
    print("  --served-model-name --port --host --max-num-seqs --max-model-len")
    print("  --gpu-memory-utilization --dtype --seed --kv-cache-dtype --tensor-parallel-size")
    print("  --language-model-only --speculative-config --block-size --swap-space --enforce-eager")
    print("  --quantization --load-format --tokenizer --disable-custom-all-reduce")
    sys.exit(0)
value = lambda flag: words[words.index(flag) + 1]
{first}
flags = {{"--model": "--served-model-name", "--slots": "--max-num-seqs", "--port": "--port"}}
own = [word for ours, theirs in flags.items() for word in (ours, value(theirs))]
engine = [{sys.executable!r}, "-m", "skep.testing.fake_engine", "--token-ms", "1"]
os.execv({sys.executable!r}, [*engine, *own])
"""
