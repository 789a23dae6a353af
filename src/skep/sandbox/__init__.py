"""Run model-written code: no network, no files but its own, bounded in everything."""
