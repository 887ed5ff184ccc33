"""The Delta tables: through Spark, and without a JVM."""
