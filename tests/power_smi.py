"""A scripted nvidia-smi, a real program: cards whose power limits can be set, by who may."""

import json
import sys


def write_smi(folder, others="#!/bin/sh\n", *, may_set=True, limits=(350, 350)):
    """Write it into a folder of PATH. What it is told to set is kept beside it; `others` is the
    program that answers everything else.
    """
    (folder / "limits.json").write_text(json.dumps(limits))
    (folder / "others").write_text(others)
    (folder / "others").chmod(0o755)
    program = folder / "nvidia-smi"
    program.write_text(f"""#!{sys.executable}
import json, os, sys
words = sys.argv[1:]
state = {str(folder / "limits.json")!r}
limits = json.load(open(state))
if words[:1] == ["--query-gpu=index,power.limit,power.min_limit,power.max_limit"]:
    for card, watts in enumerate(limits):
        print(f"{{card}}, {{watts:.2f}}, 100.00, 400.00")
elif words[:1] == ["-i"] and words[2] == "-pl":
    if not {may_set}:
        print("Unable to set power limit: Insufficient Permissions")
        sys.exit(4)
    limits[int(words[1])] = int(words[3])
    json.dump(limits, open(state, "w"))
    open(state + ".log", "a").write(" ".join(words) + "\\n")
else:
    os.execv({str(folder / "others")!r}, ["nvidia-smi", *words])
""")
    program.chmod(0o755)


def limits_of(folder):
    return json.loads((folder / "limits.json").read_text())


def changes_of(folder):
    """Return the settings so far, in order."""
    log = folder / "limits.json.log"
    return log.read_text().splitlines() if log.exists() else []
