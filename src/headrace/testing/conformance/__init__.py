"""The exams of the ports: a backend's test module subclasses a suite, overrides one fixture, and inherits the tests.

class TestMyLog(LogConformance):
    @pytest.fixture
    def address(self) -> str:
        return "mylog://127.0.0.1:1234"
"""

from headrace.testing.conformance.coordinator import CoordinatorConformance
from headrace.testing.conformance.key_value_store import KeyValueStoreConformance
from headrace.testing.conformance.log import LogConformance
from headrace.testing.conformance.registry import RegistryConformance
from headrace.testing.conformance.store import StoreConformance
from headrace.testing.conformance.target import TargetConformance

__all__ = [
    "CoordinatorConformance",
    "KeyValueStoreConformance",
    "LogConformance",
    "RegistryConformance",
    "StoreConformance",
    "TargetConformance",
]
