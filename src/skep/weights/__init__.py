"""Pull model files, check them, and read their headers."""
