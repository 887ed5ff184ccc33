"""`python -m scylla_spark_tools.bench NAME …`: a benchmark without the command line around it."""

from __future__ import annotations

import sys

from scylla_spark_tools.bench import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
