"""Tasks and their attempts."""
