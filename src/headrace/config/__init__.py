"""Typed settings in layers: packaged defaults, application TOML, deployment TOML, environment.

Promises: what `load` returns is complete and valid; what it raises names every mistake of every layer with its
file and line, or its variable; a secret is never shown, neither in an error nor by `describe`. An application
describes its own settings the same way, by deriving from `Settings` and `Section`.
"""

from headrace.config.environment import variable_for
from headrace.config.gateway_settings import (
    GatewayJwtSettings,
    GatewaySettings,
    GatewaySignatureSettings,
    GatewayTlsSettings,
)
from headrace.config.grpc_settings import GrpcSettings, GrpcTlsSettings
from headrace.config.headrace_settings import (
    ClusterSettings,
    ClusterTlsSettings,
    HeadraceSettings,
    HttpRegistrySettings,
    JournalHeadSettings,
    JournalSettings,
    KeyspaceSettings,
    ObserveSettings,
    PipelineSettings,
    RegistrySettings,
    ServicesSettings,
    TagSettings,
)
from headrace.config.layers import DEFAULTS
from headrace.config.log_settings import EmbeddedLogSettings, KafkaLogSettings, LogSettings
from headrace.config.outbox_settings import OutboxSettings
from headrace.config.secrets import looks_secret, redact
from headrace.config.settings import EffectiveValue, Section, Settings, reference
from headrace.config.store_settings import CassandraStoreSettings, EmbeddedStoreSettings, StoreSettings

__all__ = [
    "DEFAULTS",
    "CassandraStoreSettings",
    "ClusterSettings",
    "ClusterTlsSettings",
    "EffectiveValue",
    "EmbeddedLogSettings",
    "EmbeddedStoreSettings",
    "GatewayJwtSettings",
    "GatewaySettings",
    "GatewaySignatureSettings",
    "GatewayTlsSettings",
    "GrpcSettings",
    "GrpcTlsSettings",
    "HeadraceSettings",
    "HttpRegistrySettings",
    "JournalHeadSettings",
    "JournalSettings",
    "KafkaLogSettings",
    "KeyspaceSettings",
    "LogSettings",
    "ObserveSettings",
    "OutboxSettings",
    "PipelineSettings",
    "RegistrySettings",
    "Section",
    "ServicesSettings",
    "Settings",
    "StoreSettings",
    "TagSettings",
    "looks_secret",
    "redact",
    "reference",
    "variable_for",
]
