"""The Hugging Face hub's own client, in a process of its own: `python -m skep.weights.hub_client REPO [FILE]`.

It writes a JSON line with the files and their sizes, waits for a line on its standard input, fetches them into the
hub's cache, and writes where they are. Ended at any moment it leaves what the next one goes on with.
"""

from __future__ import annotations

import fcntl
import fnmatch
import json
import os
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

OTHER_ENGINES = ("*.gguf", "*.onnx", "*.h5", "*.msgpack")
OTHER_WEIGHTS = (*OTHER_ENGINES, "*.bin", "*.pt", "*.pth", "original/*", "consolidated*")
AT_ONCE = 4  # files
_FIRST_PART = re.compile(r"-00001-of-(\d{5})\.gguf$")


def wanted_files(names: list[str], file: str) -> list[str]:
    """Return the file with all its parts; without one, what an engine reads: safetensors and their kin."""
    if file:
        parts = _FIRST_PART.sub(r"-*-of-\1.gguf", file)
        return [name for name in names if fnmatch.fnmatch(name, parts)]
    for left_out in (OTHER_WEIGHTS, OTHER_ENGINES):  # the same weights in an older form only where there are no others
        found = [name for name in names if not any(fnmatch.fnmatch(name, other) for other in left_out)]
        if any(name.endswith(".safetensors") for name in found):
            break
    return found


def main(repo: str, file: str = "") -> int:
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    try:
        from huggingface_hub import HfApi, constants, hf_hub_url, snapshot_download

        found = HfApi().model_info(repo, files_metadata=True)
        files = {one.rfilename: one for one in found.siblings or ()}
        wanted = wanted_files(list(files), file)
        say(files={name: [files[name].size, getattr(files[name].lfs, "sha256", None)] for name in wanted})
        if not sys.stdin.readline().strip():
            return 0
        threading.Thread(target=end_with_parent, daemon=True).start()
        blobs = Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}" / "blobs"
        large = {lfs.sha256: name for name in wanted if (lfs := files[name].lfs) is not None}  # each content once
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda name: fetch(hf_hub_url(repo, name, revision=found.sha), blobs), large.values()))
        say(folder=snapshot_download(repo, revision="main", allow_patterns=wanted))
    except Exception as error:
        why = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        say(error=[cls.__name__ for cls in type(error).__mro__], why=why, errno=getattr(error, "errno", None))
        return 1
    return 0


def fetch(url: str, blobs: Path) -> None:
    """Fetch a large file to where the client will find it, or the rest of one: the client begins anew each time."""
    from huggingface_hub import get_hf_file_metadata
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    told = get_hf_file_metadata(url)
    if told.etag is None or (blob := blobs / told.etag).exists():
        return
    blobs.mkdir(parents=True, exist_ok=True)
    part = blobs / f"{told.etag}.part"
    with part.open("ab") as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        if blob.exists():  # another process was quicker
            return
        http_get(url, file, resume_size=part.stat().st_size, headers=build_hf_headers(), expected_size=told.size)
    part.replace(blob)


def end_with_parent() -> None:
    """However the process ends that started this one, its end of the pipe is closed."""
    sys.stdin.read()
    os._exit(1)


def say(**told: Any) -> None:
    print(json.dumps(told), flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
