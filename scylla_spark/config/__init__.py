"""Settings: every default once, durations typed, unknown keys refused."""
