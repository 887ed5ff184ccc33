"""Delta tables of others that triggers watch: their logs, and the rows that have come."""
