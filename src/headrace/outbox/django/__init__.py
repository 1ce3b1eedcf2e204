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

from typing import TYPE_CHECKING

from headrace.lazy_names import lazy_names

if TYPE_CHECKING:
    from headrace.outbox.django.inbox import DjangoInbox as DjangoInbox
    from headrace.outbox.django.publish import DjangoOutbox as DjangoOutbox
    from headrace.outbox.django.publish import DjangoProducer as DjangoProducer
    from headrace.outbox.django.publish import database_url as database_url

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "headrace.outbox.django.inbox": "DjangoInbox",
        "headrace.outbox.django.publish": "DjangoOutbox DjangoProducer database_url",
    },
    extras={"django": "django", "sqlalchemy": "django"},
)
