"""Where tasks run: one interface, a local pool, a Spark pool."""
