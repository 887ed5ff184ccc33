"""What stands below and around all routes: the server, what one client may take of it, and how long anything may last."""
