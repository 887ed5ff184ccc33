"""What a schedule waits for: trees of times, data, events and runs, what they have seen, and whether they hold."""
