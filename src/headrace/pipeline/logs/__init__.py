"""The log as Spark sees it: a source of records with real partitions, its columns and offsets, and where to begin."""
