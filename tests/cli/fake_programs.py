"""Programs that commands find on PATH: an nvidia-smi that tells of two 3090s, a vLLM that becomes
the fake engine.
"""

import sys
from pathlib import Path

CAPTURED = Path(__file__).parent.parent / "host" / "captured" / "3090x2-nvlink"
SMI = f"""#!/bin/sh
case "$1" in
--query-gpu=index,memory*) printf 'index, memory.total, memory.used\\n0, 24576, 300\\n1, 24576, 300\\n' ;;
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
    print("  --served-model-name --port --host --max-num-seqs --max-model-len --gpu-memory-utilization --dtype --seed")
    print("  --kv-cache-dtype --tensor-parallel-size --language-model-only --speculative-config --block-size")
    print("  --swap-space --enforce-eager --quantization --load-format --tokenizer --disable-custom-all-reduce")
    sys.exit(0)
value = lambda flag: words[words.index(flag) + 1]
{first}
own = ["--model", value("--served-model-name"), "--slots", value("--max-num-seqs"), "--port", value("--port")]
os.execv({sys.executable!r}, [{sys.executable!r}, "-m", "skep.testing.fake_engine", "--token-ms", "1", *own])
"""
