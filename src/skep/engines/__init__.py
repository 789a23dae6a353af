"""One file per engine, and the supervisor that keeps their processes."""
