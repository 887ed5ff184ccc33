"""What a process of ours consists of: the services in it, how it starts, and how it ends."""
