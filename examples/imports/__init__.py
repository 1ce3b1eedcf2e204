"""Readers of other systems' tables, as frames for `headrace.pipeline.import_journals`."""
