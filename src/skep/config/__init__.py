"""skep.toml, keys.toml and presets: read once, used as they are."""
