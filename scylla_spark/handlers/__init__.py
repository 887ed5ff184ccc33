"""What a handler is, and how one call of it is made."""
