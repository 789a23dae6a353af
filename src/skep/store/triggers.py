"""Triggers that keep rows final. What a released step has made of them stays: these texts are never edited."""

from __future__ import annotations

NO_UPDATE = """
CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table}
BEGIN SELECT raise(ABORT, 'rows of {table} are final'); END"""

# Deleting whole runs is the one exception: their ids stand in `deleting` while it goes on.
NO_DELETE = """
CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table}
WHEN OLD.{key} NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of {table} are final'); END"""
