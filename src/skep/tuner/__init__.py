"""A measured search: one change of the configuration at a time, each held against what was best so
far.
"""
