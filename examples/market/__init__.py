"""A small marketplace on two keyspaces."""
