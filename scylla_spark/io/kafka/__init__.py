"""Kafka: clients, topics, who may write, and what stands in the logs."""

import warnings

# kafka-python reads its schema files with a deprecated function, so that its import would fail where warnings are errors.
warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"kafka(\.|$)")
