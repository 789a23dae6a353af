"""Search for inputs that break a promise, guided by the code they reach (atheris): `make fuzz`
runs it.

    python tests/fuzz/run.py server --seconds 600
    python tests/fuzz/run.py server --keep

A search begins with what stands in `tests/fuzz/corpus` and adds inputs that reach something new to
a folder below `.fuzz`. An input that breaks a promise is written to `.fuzz` as well, with its
traceback on the terminal. `--keep` copies to the corpus the fewest inputs of that folder which
reach what the corpus does not; those that break a promise are copied by hand, once they are
mended."""

import argparse
import asyncio
import shlex
import sys
from pathlib import Path

import atheris
import uvloop

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

with atheris.instrument_imports(include=["skep"]):
    from fuzz.targets import CORPUS, TARGETS, check_input, seed_inputs

LIMITS = ["-timeout=10", "-rss_limit_mb=1500"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--largest", type=int, default=2048, help="bytes of an input")
    parser.add_argument(
        "--keep", action="store_true", help="add to the corpus, and search no more"
    )
    args, of_the_merge = parser.parse_known_args()
    folder = TESTS.parent / ".fuzz" / args.target
    inputs = folder / "found"
    corpus = CORPUS / args.target
    for place in (inputs, corpus):
        place.mkdir(parents=True, exist_ok=True)
    if args.keep:
        options = ["-merge=1", *LIMITS]
        folders = [corpus, inputs]
    else:
        options = [*search_options(args, folder), *LIMITS]
        folders = [inputs, corpus]
        write_seeds(args.target, inputs)
    run = asyncio.Runner(loop_factory=uvloop.new_event_loop).run
    # A merge runs this first word in a shell, with options of its own, and again where an input
    # ends it.
    itself = f"{shlex.join([sys.executable, sys.argv[0]])} {args.target}"
    words = [itself, *(of_the_merge or [*options, *map(str, folders)])]
    atheris.Setup(words, lambda data: check_input(args.target, data, run))
    atheris.Fuzz()


def search_options(args, folder):
    words = folder / "words.dict"
    words.write_text("".join(f'"{quoted(word)}"\n' for word in TARGETS[args.target].WORDS))
    return [
        f"-max_total_time={args.seconds}",
        f"-max_len={args.largest}",
        f"-dict={words}",
        f"-artifact_prefix={folder}/",
        "-print_final_stats=1",
    ]


def write_seeds(target, inputs):
    for number, data in enumerate(seed_inputs(target)):
        (inputs / f"seed-{number}").write_bytes(data)


def quoted(word):
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    main()
