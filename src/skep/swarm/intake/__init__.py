"""From files and documents to checked tasks."""
