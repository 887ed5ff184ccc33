"""The commands of `scylla-spark`: a module per group of them, and what only one group needs."""
