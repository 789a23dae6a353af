"""The batch API: OpenAI files and batches, stored and carried out in the class `batch`."""
