"""Builds wheel and sdist, installs the wheel that the sdist makes into an empty environment, and
serves with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parent.parent
BODY = {
    "model": "smollm2-135m",
    "max_tokens": 8,
    "messages": [{"role": "user", "content": "Say hello."}],
}


def run(*words: str | Path, env: dict[str, str] | None = None) -> str:
    print("$", *words, flush=True)
    done = subprocess.run(
        [str(word) for word in words], env=env, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"error: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "dist"
        empty = Path(folder) / "empty"
        quiet = ("-m", "pip", "install", "-q", "--disable-pip-version-check")
        run(sys.executable, "-m", "venv", empty)
        python = empty / "bin" / "python"
        skep = empty / "bin" / "skep"
        run(python, *quiet, "build")
        run(python, "-m", "build", "-o", made, ROOT)  # the wheel is made from the sdist
        run(python, "-m", "pip", "uninstall", "-q", "-y", "build")
        (wheel,) = made.glob("*.whl")
        (_,) = made.glob("*.tar.gz")
        run(python, *quiet, "-c", ROOT / "constraints.txt", wheel)
        homes = {f"XDG_{name}_HOME": f"{folder}/{name}" for name in ("CONFIG", "DATA", "STATE")}
        env = {**os.environ, **homes, "XDG_RUNTIME_DIR": folder}
        if "errors" not in run(skep, "help", "topics", env=env):
            sys.exit("error: the documentation is not in the wheel")
        url = json.loads(run(skep, "up", "--embedded", "-d", "--port", "0", "--json", env=env))[
            "url"
        ]
        try:
            body = json.dumps(BODY).encode()
            kind = {"content-type": "application/json"}
            request = urllib.request.Request(f"{url}/chat/completions", body, kind)  # noqa: S310 - loopback
            with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
                told = json.load(answer)
        finally:
            run(skep, "down", env=env)
        print(f"{wheel.name} serves: {told['usage']['completion_tokens']} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())
