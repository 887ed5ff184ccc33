"""`python -m scylla_spark.cli`."""

from scylla_spark.cli import main

main()
