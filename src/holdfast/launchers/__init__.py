"""Where processes start, and which of them live."""
