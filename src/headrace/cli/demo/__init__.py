"""`headrace demo`: all parts at work, in a temporary folder."""

from headrace.cli.demo.scenes import demo

__all__ = ["demo"]
