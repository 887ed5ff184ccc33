"""What comes with the scheduler and is no part of it: the tour (`scylla-spark demo`) and the benchmarks (`scylla-spark bench`)."""
