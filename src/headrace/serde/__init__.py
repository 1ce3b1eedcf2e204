"""Avro: Python classes to bytes that every other Avro tool reads, and schemas kept where all can find them.

Promises: a dataclass, a msgspec Struct or a pydantic model has a schema inferred from its type hints, or fails where it
is defined, naming the field; what was written with one version is read with another by Avro's rules; a schema that
would break readers or writers is refused at registration, before anything is written, naming field, version and rule.
Values are framed as Confluent's serializers frame them. Needs the extra `avro`.
"""

from headrace.serde.blocking import BlockingRegistry, KafkaDeserializer, KafkaSerializer
from headrace.serde.codecs import Codec, GenericCodec, codec_for
from headrace.serde.compatibility import Problem, Rule, problems_of_reading
from headrace.serde.framed import Decoder, Encoder, Serde
from headrace.serde.framing import body_of, frame_header, is_framed, schema_id_of
from headrace.serde.generic import GenericRecord, Symbol
from headrace.serde.keys import KeyCodec, framed_key_partition
from headrace.serde.levels import Level, check_compatible, incompatibilities
from headrace.serde.options import AvroField, avro
from headrace.serde.payloads import Payloads
from headrace.serde.ports import Levels, Registry, Version
from headrace.serde.registries import open_registry
from headrace.serde.schemas import Schema, schema_of
from headrace.serde.showing import Shower
from headrace.serde.subjects import latest_version, record_subject_of, subject_of, topic_schemas, topic_versions

__all__ = [
    "AvroField",
    "BlockingRegistry",
    "Codec",
    "Decoder",
    "Encoder",
    "GenericCodec",
    "GenericRecord",
    "KafkaDeserializer",
    "KafkaSerializer",
    "KeyCodec",
    "Level",
    "Levels",
    "Payloads",
    "Problem",
    "Registry",
    "Rule",
    "Schema",
    "Serde",
    "Shower",
    "Symbol",
    "Version",
    "avro",
    "body_of",
    "check_compatible",
    "codec_for",
    "frame_header",
    "framed_key_partition",
    "incompatibilities",
    "is_framed",
    "latest_version",
    "open_registry",
    "problems_of_reading",
    "record_subject_of",
    "schema_id_of",
    "schema_of",
    "subject_of",
    "topic_schemas",
    "topic_versions",
]
