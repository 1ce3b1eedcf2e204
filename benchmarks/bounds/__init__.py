"""Bounds: the drivers used directly and well, without Headrace.

Promises: the same guarantees as the work they are compared with (fsync, acks from all, idempotence), and no more code.
"""
