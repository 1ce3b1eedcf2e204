"""Replication of journals from the log into the store: the query, its sink, its tasks and their reports."""

# Public names are in headrace.pipeline.
__all__: list[str] = []
