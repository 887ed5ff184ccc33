"""Kafka: clients, topics, who may write, and what stands in the logs."""

import warnings

# kafka-python reads its schema files with deprecated functions, so that its import would fail where warnings are errors.
warnings.filterwarnings("ignore", r"(read|open)_text is deprecated", DeprecationWarning)
