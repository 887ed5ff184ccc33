"""What callers use: the scheduler, handles on tasks, frames, and the answer to why a task waits."""
