"""Journals, their heads and the replicated offsets as tables, states folded from them, and SQL over all of it."""

# What is public is in headrace.pipeline.
__all__: list[str] = []
