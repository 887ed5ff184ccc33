"""The border to the outside: Kafka, Delta, Spark sessions, jars, the embedded broker."""
