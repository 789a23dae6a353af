"""What makes engines die or refuse: rules as data, in the order they are tried. `diagnosis` asks them."""
