"""DataFrame to DataFrame or Column: no reads, writes, actions, sessions or clocks."""
