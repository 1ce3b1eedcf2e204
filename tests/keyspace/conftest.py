"""Asserts of what the test files share explain themselves, too."""

from __future__ import annotations

import pytest

for module in ("exam", "histories", "process_exam", "cluster"):
    pytest.register_assert_rewrite(f"tests.keyspace.{module}")
