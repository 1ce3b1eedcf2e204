"""Tools for tests of Headrace, of its backends and of applications that use it.

Promises: conformance suites that every backend passes, real servers as fixtures, and ways to break things on purpose:
processes to kill and freeze, a proxy that cuts and slows, a clock to set, crash points to die at. Needs the extra
`testing`.
"""

from headrace.testing.clock import SettableClock
from headrace.testing.crashes import SimulatedCrash, crash_at, recording
from headrace.testing.processes import ChildProcess, running, running_function

__all__ = ["ChildProcess", "SettableClock", "SimulatedCrash", "crash_at", "recording", "running", "running_function"]
