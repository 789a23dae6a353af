"""What makes engines die or refuse: rules in `diagnosis.toml`, in the order they are tried. `diagnosis` asks them."""
