"""What happened, as events: kept in the store, read back for the books."""
