"""The same replicas on a Ray cluster."""
