"""Commands and options that are gone, and what to use instead."""

REMOVED_COMMANDS: dict[str, str] = {}
REMOVED_OPTIONS = {
    ("up", "--max-replicas"): "`--max-replicas` was removed: use `skep scale MODEL=N`",
}
