"""The drivers, used plainly and well: what the machine gives without Headrace in between.

Promises: the same guarantees as the work they stand beside (fsync, acks from all, idempotence), no more code.
"""
