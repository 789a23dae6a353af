"""A goal in, one answer out: the plan, agents with tools, a tree of merges."""
