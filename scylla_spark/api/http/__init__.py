"""The server below the routes, with its bounds of connections, requests, bytes and time."""
