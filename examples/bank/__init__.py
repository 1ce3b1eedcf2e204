"""A bank: accounts as aggregates of a command engine."""
