"""Topics as DataFrames: their records, the newest record of each key, typed columns, and appends from a DataFrame."""

# Public names are in headrace.pipeline.
__all__: list[str] = []
