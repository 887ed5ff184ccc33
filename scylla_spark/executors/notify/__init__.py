"""Notifications go out here: in threads of the dispatcher, never in the children that run handlers, which so see no secret of a channel."""
