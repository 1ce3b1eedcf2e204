"""Any topic as a DataFrame, its newest record of each key, and DataFrames appended to one."""

# What is public is in headrace.pipeline.
__all__: list[str] = []
