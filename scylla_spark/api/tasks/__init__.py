"""Routes of tasks, single and many, of their lanes and handlers, and of records that were refused."""
