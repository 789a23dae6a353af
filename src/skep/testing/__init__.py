"""A scriptable fake engine, started as a real process, for faults and timing that a real engine
will not show.
"""
