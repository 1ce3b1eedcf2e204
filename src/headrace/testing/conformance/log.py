"""The conformance suite of a log, assembled from one module for each part of the port."""

from __future__ import annotations

from headrace.testing.conformance.log_appending import Appending
from headrace.testing.conformance.log_arguments import Arguments
from headrace.testing.conformance.log_cleaning import Cleaning
from headrace.testing.conformance.log_groups import GroupMembers
from headrace.testing.conformance.log_processes import Processes
from headrace.testing.conformance.log_reading import Reading
from headrace.testing.conformance.log_topics import Topics
from headrace.testing.conformance.log_transactions import Transactions

__all__ = ["LogConformance"]


class LogConformance(Appending, Arguments, Reading, Transactions, GroupMembers, Topics, Cleaning, Processes):
    """The whole suite of a log; a backend overrides `address`."""
