"""Routes about the deployment as a whole: queues, how it is doing, its partitions and tables."""
