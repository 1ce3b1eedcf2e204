"""What each database says differently: its clock, its way to ignore a duplicate, its way to find and delete rows.

Promises: one `Dialect` for each of PostgreSQL, MySQL/MariaDB and SQLite, equal in meaning.
"""

from headrace.outbox.dialects.choosing import dialect_of
from headrace.outbox.dialects.dialect import Dialect

__all__ = ["Dialect", "dialect_of"]
