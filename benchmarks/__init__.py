"""Benchmarks of Headrace: every figure is compared with a bound that is measured in the same run.

Every module of this folder is one bench and holds one `BENCH`; a bench's name is its module's, with hyphens.
`harness` runs them, `bounds` holds the raw drivers for comparison, and `workloads` the records they use.
Run with `python -m benchmarks [NAME…]`; how to read the figures is in docs/performance.md.
"""
