"""GPUs, models and presets as packaged TOML data, with the lookups that read it."""
