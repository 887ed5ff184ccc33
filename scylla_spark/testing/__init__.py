"""For tests of who uses scylla-spark, and for our own: histories of a deployment, and their one judge."""
