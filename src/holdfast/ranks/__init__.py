"""The processes that commit together: implementations of the `Ranks` port."""
