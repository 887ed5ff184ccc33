# Databricks notebook source
# Checks an installation, and prints no secret: settings that are secret are shown as set or missing.

# COMMAND ----------

import os

import scylla_spark
from scylla_spark.config.settings import Settings
from scylla_spark.doctor import examine_kafka

settings = Settings.load()
print("scylla-spark", scylla_spark.__version__, "on Spark", spark.version)  # noqa: F821 - the notebook's session
for name in ("SCYLLASPARK_KAFKA__PASSWORD", "SCYLLASPARK_DESK__SECRET"):
    print(name, "is set" if os.environ.get(name) else "is missing")

# COMMAND ----------

checks = examine_kafka(settings)
for check in checks:
    print("ok    " if check.ok else "FAILED", check.name, check.detail, "" if check.ok else check.mend)

# COMMAND ----------

from scylla_spark.io.delta.table_reader import TableReader

print("the tables have", TableReader.of(settings).rules().partitions, "partitions")
assert all(check.ok for check in checks), "see the lines that say FAILED"
