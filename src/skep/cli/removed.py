"""Commands and options that are gone, and what to use instead."""

REMOVED_COMMANDS: dict[str, str] = {
    "bench import": "`skep bench import` was removed: measure the same endpoint with `skep bench sweep`",
    "bench judge": "`skep bench judge` was removed: `skep bench quality` and `bench mixed` judge answers as they run",
    "tune explain": "`skep tune explain` was removed: `skep tune show` says why each step was kept or left",
}
REMOVED_OPTIONS: dict[tuple[str, str], str] = {
    ("up", "--max-replicas"): "`--max-replicas` was removed: use `skep scale MODEL=N`",
    (
        "swarm run",
        "--serial-sample",
    ): "`--serial-sample` was removed: `skep bench serial-vs-swarm` measures the speedup over one task at a time",
    ("tune show", "--all"): "`--all` was removed: `skep tune show` lists every step",
}
