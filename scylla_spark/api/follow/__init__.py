"""The newest records of both logs, read once for all requests that wait, stream or count."""
