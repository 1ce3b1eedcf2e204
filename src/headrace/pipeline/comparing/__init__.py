"""Whether the store has what the log says: windows of the log, looks at the store, judgements, and the mending."""

__all__: list[str] = []
