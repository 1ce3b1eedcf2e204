"""Jobs of one task for each partition of a topic: expiry, back-fill and audit."""

__all__: list[str] = []
