"""One file per engine: how it is found, started, checked and diagnosed."""
