"""Settings of the outbox: its tables, its relay, and what happens to messages that can't be sent."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from headrace.config.settings import Count, Seconds, Section

__all__ = ["OutboxSettings"]

OutboxBackend = Literal["db", "kafka", "kafka_async"]
OutboxDelivery = Literal["at_least_once", "exactly_once"]
OutboxPoison = Literal["skip", "block_key", "block_topic"]


class OutboxSettings(Section):
    """Publishing in the application's own SQL transaction, and sending from there."""

    database: SecretStr | None = Field(
        default=None, description="The database, as SQLAlchemy names it: postgresql://…, mysql://…, sqlite:///file."
    )
    table_prefix: str = Field(
        default="kafka_", pattern="^[a-z_][a-z0-9_]{0,29}$", description="Prefix of the table names."
    )
    backend: OutboxBackend = Field(
        default="db", description="db: the outbox; kafka: send at once and wait for acks; kafka_async: don't wait."
    )
    buckets: Count = Field(default=1, description="Parts of a topic that are sent in parallel; a key stays in one.")
    buckets_by_topic: dict[str, Count] = Field(default={}, description="The same for single topics.")
    max_message_bytes: Count = Field(
        default=1_048_588, description="The brokers' limit on a record; larger ones are refused at publish."
    )
    max_message_bytes_by_topic: dict[str, Count] = Field(default={}, description="The same for single topics.")
    threads: int | None = Field(default=1, description="Workers of a relay.")
    batch_size: Count = Field(default=1000, description="Most messages that are sent and deleted together.")
    batch_bytes: Count = Field(default=16_777_216, description="Most bytes of a batch; a single message may be larger.")
    turn_batches: Count = Field(default=10, description="Full batches of a topic before others have their turn.")
    poll_interval_s: Seconds = Field(default=0.5, description="Longest time between two looks at an idle table.")
    lease_s: Seconds = Field(default=60.0, description="A lease that was not renewed for this long is free.")
    send_timeout_s: Seconds = Field(default=30.0, description="Longest wait for the log before a topic is held back.")
    first_retry_s: Seconds = Field(default=0.1, description="Wait after the first error of a topic; it doubles.")
    max_retry_s: Seconds = Field(default=60.0, description="Longest wait after an error of a topic.")
    compact_topics: list[str] = Field(
        default=[], description="Topics of which only a key's last message in a batch is sent."
    )
    log_topics: list[str] = Field(default=[], description="Topics whose messages are logged, decoded.")
    poison: OutboxPoison = Field(
        default="skip", description="What a message that can't be sent holds back: nothing, its key, its topic."
    )
    poison_by_topic: dict[str, OutboxPoison] = Field(default={}, description="The same for single topics.")
    delivery: OutboxDelivery = Field(default="at_least_once", description="exactly_once uses transactions of the log.")
    source: str = Field(
        default="", description="Name of this database among all outboxes of the log; exactly_once needs it."
    )
    keep_sent_topics: list[str] = Field(
        default=[], description='Topics whose messages are kept after they were sent, for audit; "*" for all.'
    )
    keep_sent_s: Seconds = Field(default=604_800.0, description="How long sent messages are kept.")
    metrics_interval_s: Seconds = Field(default=15.0, description="Time between two counts of what is pending.")

    def buckets_of(self, topic: str) -> int:
        """Return how many buckets the topic has."""
        return self.buckets_by_topic.get(topic, self.buckets)

    def limit_of(self, topic: str) -> int:
        """Return the largest record the topic takes."""
        return self.max_message_bytes_by_topic.get(topic, self.max_message_bytes)

    def keeps_sent(self, topic: str) -> bool:
        """Return True if messages of the topic are kept after they were sent."""
        return topic in self.keep_sent_topics or "*" in self.keep_sent_topics

    def poison_policy_of(self, topic: str) -> OutboxPoison:
        """Return what a poison message of the topic holds back."""
        return self.poison_by_topic.get(topic, self.poison)
