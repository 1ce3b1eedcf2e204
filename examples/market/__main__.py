"""The marketplace in one process: a listing, a purchase, and what is refused."""

from __future__ import annotations

import asyncio
import sys

from examples.market.keyspaces import Buy, Buyers, Listing, Offers, TopUp, app

import headrace
from headrace.app import Headrace
from headrace.errors import RequestFailed
from headrace.log import ensure_topic
from headrace.model import NewRecord, TopicConfig
from headrace.serde import Serde


async def main(address: str) -> None:
    """Run it on the log at an address."""
    async with headrace.connect(address) as hr:
        for topic in ("listings", "sales"):
            await ensure_topic(hr.log.admin, topic, partitions=4, config=TopicConfig())
        async with hr.node(app):
            buyers, offers = hr.keyspace(Buyers), hr.keyspace(Offers)
            await put_up(hr, Listing("lamp", "sam", 40))
            async for change in offers.changes("offers", "lamp"):
                if change.value is not None:
                    break  # the input stream has taken it in
            await buyers.ask(TopUp("bea", 100))
            print(await offers.ask(Buy("lamp", "bea"), message_id="bea-buys-the-lamp"))
            print("bea has", (await buyers.get("purses", "bea")).amount)
            try:
                await offers.ask(Buy("lamp", "joe"))
            except RequestFailed as refused:
                print("refused:", refused.reason)


async def put_up(hr: Headrace, listing: Listing) -> None:
    """Send a listing as any Kafka producer would: Avro, under the item's name."""
    encode = await Serde(hr.registry, "listings-value", Listing).encoder()
    await hr.log.append([NewRecord("listings", listing.item.encode(), encode(listing))])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "embedded:./market-data"))
