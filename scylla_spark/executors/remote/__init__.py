"""Pools on other machines: the state machines of both ends of their connections. Nothing here reads a clock or a socket."""
