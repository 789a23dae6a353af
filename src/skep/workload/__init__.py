"""What is asked of a model under measurement: unlimited distinct coding prompts."""
