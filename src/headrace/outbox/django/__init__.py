"""The outbox in Django: publish inside `transaction.atomic()`, on Django's own connection.

    from headrace.outbox.django import DjangoOutbox

    orders = DjangoOutbox().producer("orders", serializer=JsonSerializer())
    with transaction.atomic():
        order = Order.objects.create(item="lamp")
        orders.publish({"id": order.id}, key=order.id)

Promises: what is published is committed with the transaction, and with the savepoint, that it was published in, or not
at all; PostgreSQL, MySQL/MariaDB and SQLite. Relays are the usual ones: `headrace outbox relay`.
Does not promise: an order between transactions that publish before they have locked what they change.

As an app ("headrace.outbox.django" in INSTALLED_APPS) it makes its tables with `manage.py migrate`. Needs the extra
`django`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from headrace.errors import MissingExtra

if TYPE_CHECKING:
    from headrace.outbox.django.addresses import database_url as database_url
    from headrace.outbox.django.publish import DjangoOutbox as DjangoOutbox
    from headrace.outbox.django.publish import DjangoProducer as DjangoProducer

_HOMES = {"DjangoOutbox": "publishing", "DjangoProducer": "publishing", "database_url": "addresses"}

__all__ = ["DjangoOutbox", "DjangoProducer", "database_url"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace.outbox.django' has no attribute {name!r}")
    try:
        return getattr(import_module(f"headrace.outbox.django.{_HOMES[name]}"), name)
    except ModuleNotFoundError as missing:
        if missing.name not in ("django", "sqlalchemy"):
            raise
        raise MissingExtra(missing.name, "django") from missing


def __dir__() -> list[str]:
    return sorted(__all__)
