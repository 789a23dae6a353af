"""Answers held against their schema and their checker, before they count."""
