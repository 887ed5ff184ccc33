"""Who is told of what: rules, incidents, and the messages that are gathered of them."""
