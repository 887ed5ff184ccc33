"""Rules of notifications."""
