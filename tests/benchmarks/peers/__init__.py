"""Other schedulers measured beside this one, in one run on one machine: `make bench-peers`."""
