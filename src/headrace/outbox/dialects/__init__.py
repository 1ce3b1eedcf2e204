"""What each database says differently: its clock, its way to ignore a duplicate, its way to find and delete rows.

Promises: one `Speech` for each of PostgreSQL, MySQL/MariaDB and SQLite, equal in meaning.
"""

from headrace.outbox.dialects.choosing import speech_of
from headrace.outbox.dialects.dialect import Speech

__all__ = ["Speech", "speech_of"]
