"""`headrace demo`: see it work, on a folder that is thrown away."""

from headrace.cli.demo.scenes import demo

__all__ = ["demo"]
