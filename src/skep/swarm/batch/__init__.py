"""OpenAI's files and batches: JSONL in, JSONL out, durable, in the `batch` class."""
