"""Coding agents: how each is configured for an endpoint, at a start or in its own files."""
