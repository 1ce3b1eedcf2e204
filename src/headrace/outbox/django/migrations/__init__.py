"""Migrations of the Django app: each brings the tables to the newest version."""

__all__: list[str] = []
