"""What all Spark jobs share: the session, the endpoints, and the connections of a worker."""

# Public names are in headrace.pipeline.
__all__: list[str] = []
