"""The log as a source of Spark: records with their partitions, columns and offsets, and the plan of replication."""

# Public names are in headrace.pipeline.
__all__: list[str] = []
