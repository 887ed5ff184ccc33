"""Tasks that wait for workers: who gets which, how long it is theirs, and what becomes of what they report."""
