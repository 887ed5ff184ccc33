"""The HTTP API: a process of its own that sends commands, reads tables and logs, and holds nothing that matters."""
