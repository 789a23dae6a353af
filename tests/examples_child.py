"""Runs examples one after the other in one process, since what they import takes longer than they
do.

Loads those named on the command line, then reads `[name, url]` lines, and answers each with
`[code, stdout, stderr]`."""

import contextlib
import io
import json
import os
import runpy
import sys
import traceback
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name, run_name="__main__"):
    """As `python examples/NAME.py` would."""
    path = str(EXAMPLES / f"{name}.py")
    out = io.StringIO()
    err = io.StringIO()
    code = 0
    sys.argv = [path]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_path(path, run_name=run_name)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
            print(ended.code, file=sys.stderr)
        except BaseException:
            code = 1
            traceback.print_exc()
    return code, out.getvalue(), err.getvalue()


for name in sys.argv[1:]:
    run(name, "loaded")
for line in sys.stdin:
    name, os.environ["SKEP_URL"] = json.loads(line)
    print(json.dumps(run(name)), flush=True)
