"""Kafka: clients, topics, who may write, and what stands in the logs."""
