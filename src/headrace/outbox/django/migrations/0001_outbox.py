"""The tables of the outbox and the inbox."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from headrace.outbox.django.migrations import drop_tables, make_tables

__all__ = ["Migration"]


class Migration(migrations.Migration):
    """Not atomic: the tables are made over a connection of their own, which must not wait for Django's."""

    atomic = False
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[migrations.RunPython]] = [migrations.RunPython(make_tables, drop_tables)]
