"""Suites of our own rooms that run on every tier: journals, events by tag, projections."""
