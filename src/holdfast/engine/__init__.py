"""Doing it, through ports only: Store, State, Ranks, Processes, Ledger and Clock come as arguments."""
