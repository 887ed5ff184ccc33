"""Dispatch: the shell around the engine."""
