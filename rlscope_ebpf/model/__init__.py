"""What every other part shares: events, tables, names of categories, the sink protocol. No I/O, nothing heavy."""
