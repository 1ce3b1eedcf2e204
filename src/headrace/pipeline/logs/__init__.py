"""The log as Spark sees it: a source of records with real partitions, its columns and offsets, and where to begin."""

# What is public is in headrace.pipeline.
__all__: list[str] = []
