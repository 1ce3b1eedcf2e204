"""Which of Spark's properties and options must not be shown, by their names."""

from __future__ import annotations

import re

__all__ = ["SECRET_NAMES", "is_secret"]

# What a person should not find in a log, a plan or a web page: passwords, SASL lines, and places, which may hold them.
# Spark's own list lacks the last four.
SECRET_NAMES = "(?i)secret|password|token|access[.]?key|credential|jaas|sasl|ssl"  # noqa: S105 - names


def is_secret(name: str) -> bool:
    """Say whether a property of that name may hold a secret."""
    return re.search(SECRET_NAMES, name) is not None
