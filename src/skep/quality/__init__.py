"""Answers executed and judged under load."""
