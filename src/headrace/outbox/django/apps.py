"""The Django app: its migrations make the tables."""

from __future__ import annotations

from django.apps import AppConfig

__all__ = ["HeadraceOutboxConfig"]


class HeadraceOutboxConfig(AppConfig):
    """The app "headrace.outbox.django" in INSTALLED_APPS. It has no models: rows are the relay's business."""

    name = "headrace.outbox.django"
    label = "headrace_outbox"
    verbose_name = "Headrace outbox"
