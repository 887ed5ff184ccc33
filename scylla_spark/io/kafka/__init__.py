"""Kafka: clients, topics, who may write, and what stands in the logs."""

import warnings
from importlib import import_module

with warnings.catch_warnings():
    # kafka-python reads its schema files with a deprecated function: its import would fail where warnings are errors
    warnings.simplefilter("ignore", DeprecationWarning)
    import_module("kafka")
