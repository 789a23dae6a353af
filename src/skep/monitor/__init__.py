"""Watching targets over months: when to probe, what came of it, what changed and when, and who is
told.
"""
