"""Whether the store has what the log says: windows of the log, journals of the store, judgements, and repairs."""

__all__: list[str] = []
