"""Search for inputs that break a promise, guided by the code they reach (atheris): `make fuzz` runs it.

    python tests/fuzz/run.py server --seconds 600

Inputs that reach something new are added to a folder below `.fuzz`; what stands in `tests/fuzz/corpus` is where it
begins. An input that breaks a promise is written to `.fuzz` as well, with its traceback on the terminal.
"""

import argparse
import asyncio
import sys
from pathlib import Path

import atheris
import uvloop

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

with atheris.instrument_imports(include=["skep"]):
    from fuzz.targets import CORPUS, TARGETS, check_input, seed_inputs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--largest", type=int, default=2048, help="bytes of an input")
    args = parser.parse_args()
    folder = TESTS.parent / ".fuzz" / args.target
    found = folder / "found"
    found.mkdir(parents=True, exist_ok=True)
    words = folder / "words.dict"
    words.write_text("".join(f'"{quoted(word)}"\n' for word in TARGETS[args.target].WORDS))
    for number, data in enumerate(seed_inputs(args.target)):
        (found / f"seed-{number}").write_bytes(data)
    options = [
        f"-max_total_time={args.seconds}",
        f"-max_len={args.largest}",
        f"-dict={words}",
        f"-artifact_prefix={folder}/",
        "-timeout=10",
        "-rss_limit_mb=1500",
        "-print_final_stats=1",
    ]
    folders = [str(found), *(str(path) for path in [CORPUS / args.target] if path.is_dir())]
    run = asyncio.Runner(loop_factory=uvloop.new_event_loop).run
    atheris.Setup([sys.argv[0], *options, *folders], lambda data: check_input(args.target, data, run))
    atheris.Fuzz()


def quoted(word):
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    main()
