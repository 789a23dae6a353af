"""Which layout, does it fit, how fast with N agents, and why: arithmetic on the catalogue, no
clock, no disk.
"""
