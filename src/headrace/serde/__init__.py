"""Avro: encoding Python classes as bytes that every Avro tool reads, and registries that keep the schemas.

Promises: the schema of a dataclass, a msgspec Struct or a pydantic model is inferred from its type hints, or an error
names the field where the class is defined. Data written with one version is read with another by Avro's rules. A
schema that would break readers or writers is refused at registration, before anything is written; the error names
field, version and rule. Values have the framing of Confluent's serializers. Needs the extra `avro`.
"""

from headrace.serde.blocking import BlockingRegistry, KafkaDeserializer, KafkaSerializer
from headrace.serde.codecs import Codec, GenericCodec, codec_for
from headrace.serde.compatibility import (
    Level,
    Problem,
    Rule,
    check_compatible,
    incompatibilities,
    is_same_name,
    matching_branch,
    problems_of_reading,
    source_of,
)
from headrace.serde.framing import HEADER_BYTES, Decoder, Encoder, Serde, body_of, frame_header, is_framed, schema_id_of
from headrace.serde.keys import KeyCodec, framed_key_partition
from headrace.serde.options import AvroField, avro
from headrace.serde.ports import Levels, Registry, Version
from headrace.serde.registries import open_registry
from headrace.serde.schema_json import json_of_shape
from headrace.serde.schemas import Schema, schema_of
from headrace.serde.shapes import (
    NO_DEFAULT,
    ArrayShape,
    EnumShape,
    FieldShape,
    FixedShape,
    GenericRecord,
    MapShape,
    PrimitiveShape,
    RecordShape,
    Shape,
    Symbol,
    UnionShape,
    branch_name,
    short_name,
)
from headrace.serde.subjects import (
    JsonRenderer,
    Part,
    check_subject,
    latest_version,
    record_subject_of,
    subject_of,
    topic_schemas,
    topic_versions,
)
from headrace.serde.typed_payloads import Payloads

__all__ = [
    "HEADER_BYTES",
    "NO_DEFAULT",
    "ArrayShape",
    "AvroField",
    "BlockingRegistry",
    "Codec",
    "Decoder",
    "Encoder",
    "EnumShape",
    "FieldShape",
    "FixedShape",
    "GenericCodec",
    "GenericRecord",
    "JsonRenderer",
    "KafkaDeserializer",
    "KafkaSerializer",
    "KeyCodec",
    "Level",
    "Levels",
    "MapShape",
    "Part",
    "Payloads",
    "PrimitiveShape",
    "Problem",
    "RecordShape",
    "Registry",
    "Rule",
    "Schema",
    "Serde",
    "Shape",
    "Symbol",
    "UnionShape",
    "Version",
    "avro",
    "body_of",
    "branch_name",
    "check_compatible",
    "check_subject",
    "codec_for",
    "frame_header",
    "framed_key_partition",
    "incompatibilities",
    "is_framed",
    "is_same_name",
    "json_of_shape",
    "latest_version",
    "matching_branch",
    "open_registry",
    "problems_of_reading",
    "record_subject_of",
    "schema_id_of",
    "schema_of",
    "short_name",
    "source_of",
    "subject_of",
    "topic_schemas",
    "topic_versions",
]
