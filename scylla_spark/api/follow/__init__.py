"""What happens in the logs right now: followed once for all requests that wait for it, stream it or count it."""
