"""One script: every engine on its cards, skep's gateway in front, and an end that ends them all."""

from __future__ import annotations

from skep.engines.export.recipe import (
    HERE,
    OLLAMA,
    Recipe,
    before,
    environment,
    gateway_words,
    head,
    health_path,
    native_words,
    pulling,
    wants,
)
from skep.engines.export.words import comments, shell_lines, shell_word

# An engine may take minutes to load and to capture its graphs: the wait ends with the engine, not with a clock.
_FRAME = """\
set -euo pipefail

pids=()
stop() {
  trap - EXIT INT TERM
  [ "${#pids[@]}" -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
  wait
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

ready() {  # NAME PID URL
  until curl -fsS -o /dev/null --max-time 5 "$3" 2>/dev/null; do
    kill -0 "$2" 2>/dev/null || { echo "$1 ended before it was ready" >&2; exit 1; }
    sleep 1
  done
  echo "$1 is ready" >&2
}
"""


def shell(recipe: Recipe) -> str:
    lines = ["#!/usr/bin/env bash\n", comments((*head(recipe, "shell"), *wants(recipe, contained=False))), _FRAME]
    waits: dict[str, str] = {}
    for place, launch in enumerate(recipe.launches):
        earlier = before(recipe.launches, place)
        if earlier is not None and earlier.name in waits:
            lines.append(waits.pop(earlier.name))
        words = [f"{name}={value}" for name, value in environment(launch, recipe.vendor).items()]
        lines.append(f"\n{shell_lines(['env', *words, *native_words(launch)])} &\n")
        lines.append(f"pids+=($!) replica_{place}=$!\n")
        url = f"http://{HERE}:{launch.port}{health_path(launch)}"
        waits[launch.name] = f'ready {shell_word(launch.name)} "$replica_{place}" {shell_word(url)}\n'
    lines += ["\n", *waits.values()]
    model, first = pulling(recipe), recipe.first
    if model is not None:  # replicas of one user share what is pulled
        words = [f"{name}={value}" for name, value in environment(first, recipe.vendor).items() if name == OLLAMA]
        lines.append(f"\n{shell_lines(['env', *words, *native_words(first)[:1], 'pull', model])}\n")
    lines.append(f"\n{shell_lines(gateway_words(recipe))} &\npids+=($!)\n")
    lines.append("wait -n  # whichever ends first ends the others\n")
    return "".join(lines)
