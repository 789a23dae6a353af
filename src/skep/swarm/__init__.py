"""Tasks in, results out: many at once, none lost."""
