"""The load generator, runs, and metrics from raw timestamps."""
