"""`python -m scylla_spark.bench NAME …`: a benchmark without the command line around it."""

from __future__ import annotations

import sys

from scylla_spark.bench import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
