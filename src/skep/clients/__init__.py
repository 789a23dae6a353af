"""Coding agents: what each is told of an endpoint, and its own configuration file."""
