"""Tasks from the side of those who enqueue them: arguments, handles, unique keys, lines and files they left behind."""
