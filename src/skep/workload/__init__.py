"""What is asked of a model under measurement, how long it is, and when: prompts, conversations,
traces, arrivals.
"""
