"""A small shop: orders and their messages in one SQL transaction, a relay, and a consumer that bills once."""
