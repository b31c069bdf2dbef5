"""Beam jobs and the workflow that runs them: download, clean, deduplicate, tokenize, index, blend."""
