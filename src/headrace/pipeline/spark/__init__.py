"""What every job of Spark here stands on: the session, where log and store are, and what a worker keeps open."""
