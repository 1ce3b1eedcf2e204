"""What Headrace costs, each figure beside a bound measured in the same run.

Every module of this folder is one bench and holds one `BENCH`; a bench's name is its module's, with hyphens.
`harness` runs them, `bounds` holds the raw drivers they are measured against, `workloads` the records they use.
Run with `python -m benchmarks [NAME…]`; how to read the figures is in docs/performance.md.
"""
