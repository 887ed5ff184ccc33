"""What the tables say of themselves."""
