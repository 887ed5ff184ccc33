"""The Spark pool: handlers on the executors of a Spark cluster."""
