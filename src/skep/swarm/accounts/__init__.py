"""What a run took and what it would have taken one task after another."""
