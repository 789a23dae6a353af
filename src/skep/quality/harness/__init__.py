"""Programs that run inside the sandbox, handed over as files. They import the standard library and each other only.

Two processes: `driver` is forked into one that runs the answer's code (`worker`) and one that never does. The first
tells what it found through a pipe; the second asks, compares and reports, and alone knows the mark of a true report.
What that promises: whatever code prints, writes to its descriptors or returns on leaving makes no pass. Code that goes
looking for the harness inside its own process, and imitates it, can make one where tests run beside it (`python`,
`completion`); for the other kinds what should come out is known to the reporting process alone.
A kind of checker is two functions: one looks, in the reporting process, the other tries the answer's code.
"""
