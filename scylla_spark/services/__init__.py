"""The processes around the engine: ingest, dispatch, and everything on one machine."""
