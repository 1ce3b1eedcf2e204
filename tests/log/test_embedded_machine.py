"""The embedded log under random use."""

from __future__ import annotations

import shutil
import tempfile

from hypothesis import settings

from headrace.testing.conformance.log_machine import LogMachine


class EmbeddedMachine(LogMachine):
    """Each run has a folder of its own."""

    def make_address(self) -> str:
        self.folder = tempfile.mkdtemp(prefix="headrace-machine-")
        return f"embedded:{self.folder}"

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.folder)


TestEmbeddedMachine = EmbeddedMachine.TestCase
TestEmbeddedMachine.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)
