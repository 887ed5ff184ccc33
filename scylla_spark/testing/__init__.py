"""For tests of who uses scylla-spark, and for our own: histories of a deployment, the one judge of them, and measures."""
