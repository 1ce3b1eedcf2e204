"""Nodes that share partitions: members, their assignment, who owns what, and requests between them."""
