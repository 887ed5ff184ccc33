"""Workers: programs that lease tasks of pull queues over HTTP, keep the leases alive, and report what became of them.

Nothing but the standard library is imported from here, and nothing of ours but words and rules: a worker needs neither Kafka nor
Spark nor any package.
"""
