"""What every job of Spark here stands on: the session, where log and store are, and what a worker keeps open."""

# What is public is in headrace.pipeline.
__all__: list[str] = []
