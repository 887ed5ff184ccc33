"""`async def` handlers: each has a child of its own beside the dispatcher, in which many of its tasks share an event loop."""
