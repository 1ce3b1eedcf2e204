"""`headrace pipeline`, put together: replication, quarantine, and the jobs that run once."""

from headrace.cli import pipeline_jobs, pipeline_package, pipelines

__all__ = ["app"]

app = pipelines.app
pipeline_jobs.add_jobs(app)
pipeline_package.add_package(app)
