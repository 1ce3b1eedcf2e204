"""Journals on the embedded tier under random use."""

from __future__ import annotations

import shutil
import tempfile

from hypothesis import settings
from tests.suites.journal_machine import JournalMachine


class EmbeddedMachine(JournalMachine):
    """Each run has a folder of its own."""

    def make_addresses(self) -> tuple[str, str]:
        self.folder = tempfile.mkdtemp(prefix="headrace-machine-")
        return f"embedded:{self.folder}", f"embedded:{self.folder}"

    def empty_store_address(self) -> str:
        return f"embedded:{tempfile.mkdtemp(dir=self.folder)}"

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.folder)


TestEmbeddedMachine = EmbeddedMachine.TestCase
TestEmbeddedMachine.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
