"""The local pool: handlers in child processes of this machine."""
