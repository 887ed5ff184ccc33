"""Notifications go out here: in threads of the dispatcher and processes of Apprise. Children of handlers see no secret of a channel."""
