"""Programs that run inside the sandbox, handed over as files. They import the standard library and each other only.

Two processes: `driver` is forked into one that runs the answer's code (`worker`) and one that never does. The first
tells what it found through a pipe; the second asks, compares and reports, and alone knows the mark of a true report.
A kind of checker is a module with `try_out` (beside the answer's code) and `look` (in the other process).
"""
