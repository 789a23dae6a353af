"""Record the calls into skep's files, in every Python process that `scripts/size.py --trace`
starts.

Python imports this module at start-up because `scripts/size.py` puts its folder on PYTHONPATH.
With SKEP_TRACE=FOLDER each process writes FOLDER/PID.tsv: its command line, then one line a call,
written at once (a process may be killed): time in ns, thread, file of the calling function, file
and name of the called one. A caller "-" is the event loop or the start of a thread. Calls within
one file are left out; "<load>" is the body of a module."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from types import FrameType

_IS_FUNCTION = 0x1  # CO_OPTIMIZED: the bodies of modules and classes lack it


def _record(folder: str, root: str) -> None:
    out = os.open(
        os.path.join(folder, f"{os.getpid()}.tsv"),  # noqa: PTH118
        os.O_WRONLY | os.O_CREAT | os.O_APPEND,
        0o600,
    )
    os.write(out, json.dumps(sys.orig_argv).encode() + b"\n")
    start = len(root) + 1

    def called(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(root):
            return
        name = code.co_name
        if not code.co_flags & _IS_FUNCTION:
            if name != "<module>":
                return
            name = "<load>"
        caller = "-"
        back = frame.f_back
        while back is not None:
            file = back.f_code.co_filename
            if file.startswith(root):
                caller = file[start:]
                break
            if "/asyncio/" in file:
                break
            back = back.f_back
        here = code.co_filename[start:]
        if caller != here:
            os.write(
                out,
                f"{time.monotonic_ns()}\t{threading.get_ident()}\t{caller}\t{here}\t{name}\n".encode(),
            )

    threading.setprofile(called)
    sys.setprofile(called)


if os.environ.get("SKEP_TRACE"):
    _record(os.environ["SKEP_TRACE"], os.environ["SKEP_TRACE_ROOT"])
