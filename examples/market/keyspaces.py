"""A marketplace: offers that expire, and buyers with purses. Each is a keyspace; buying an offer asks the buyer's."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.keyspace import App, Context, Keyspace, State, consumes, handles, state

__all__ = ["Buy", "Buyers", "Credit", "Listing", "Offers", "Pay", "Purse", "Sale", "TopUp", "app"]


@dataclass
class Listing:
    """What a seller puts up, as it comes in on the topic `listings`; the record's key is the item."""

    item: str
    seller: str
    price: int


@dataclass
class Purse:
    """What a buyer has."""

    amount: int = 0


@dataclass
class TopUp:
    """Put money into a purse."""

    buyer: str
    amount: int


@dataclass
class Pay:
    """Take money out of a purse, for an item."""

    buyer: str
    amount: int
    item: str


@dataclass
class Credit:
    """Give a seller the price of an item."""

    seller: str
    amount: int


@dataclass
class Buy:
    """Buy an item."""

    item: str
    buyer: str


@dataclass
class Sale:
    """An item that was bought."""

    item: str
    seller: str
    buyer: str
    price: int


class Buyers(Keyspace, name="market-buyers", partitions=4):
    """Purses by name; sellers have one, too."""

    purses: State[str, Purse] = state()

    @handles
    async def top_up(self, message: TopUp) -> Purse:
        """Put money in."""
        return await self._add(message.buyer, message.amount)

    @handles
    async def pay(self, message: Pay) -> Purse:
        """Take money out. A purse is never overdrawn."""
        purse = await self.purses.get(message.buyer) or Purse()
        if purse.amount < message.amount:
            raise ValueError(f"{message.buyer} has {purse.amount} and can't pay {message.amount} for {message.item}")
        return await self._add(message.buyer, -message.amount)

    @handles
    async def credit(self, message: Credit) -> Purse:
        """Give a seller the price."""
        return await self._add(message.seller, message.amount)

    async def _add(self, name: str, amount: int) -> Purse:
        purse = await self.purses.get(name) or Purse()
        purse = replace(purse, amount=purse.amount + amount)
        await self.purses.put(name, purse)
        return purse


class Offers(Keyspace, name="market-offers", partitions=4):
    """Offers by item, for an hour each."""

    offers: State[str, Listing] = state(ttl="1h", index={"by_seller": lambda offer: offer.seller})
    sales: State[str, Sale] = state()

    @consumes("listings")
    async def listed(self, listing: Listing) -> None:
        """Take in what sellers put up, each record once."""
        if await self.sales.get(listing.item) is None:
            await self.offers.put(listing.item, listing)

    @handles
    async def buy(self, message: Buy, context: Context) -> Sale:
        """Sell an item once: the buyer pays, the offer goes, the seller gets a message, all or nothing."""
        if sold := await self.sales.get(message.item):
            raise ValueError(f"{message.item} was sold to {sold.buyer}")
        offer = await self.offers.get(message.item)
        if offer is None:
            raise ValueError(f"nobody offers {message.item}")
        await context.ask(Buyers, Pay(message.buyer, offer.price, message.item))
        await self.offers.delete(message.item)
        sale = Sale(message.item, offer.seller, message.buyer, offer.price)
        await self.sales.put(message.item, sale)
        context.tell(Buyers, Credit(offer.seller, offer.price))
        context.emit("sales", f"{sale.item}: {sale.price}".encode(), key=message.item.encode())
        return sale


app = App(Buyers, Offers)
