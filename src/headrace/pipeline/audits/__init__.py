"""The parts of an audit: windows of the log, journals of the store, judgements, findings and repairs."""

__all__: list[str] = []
