"""Routes of workers, and the way of their calls to the dispatchers that own what they ask for."""
