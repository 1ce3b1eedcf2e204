"""Tables of journals, of their heads and of replicated offsets; states folded from events; and SQL over all of them."""

# Public names are in headrace.pipeline.
__all__: list[str] = []
