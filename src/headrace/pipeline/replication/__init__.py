"""Carrying journals from the log into the store: the query, its sink, its tasks, and what is told of them."""

# What is public is in headrace.pipeline.
__all__: list[str] = []
