"""What a run took."""
