"""Watches targets over months: when to probe them, what the probes measured, what changed and
when, and who is notified.
"""
