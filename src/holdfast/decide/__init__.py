"""What to do: pure functions and tables. History in, decision and reason out.

Rule 6: nothing in `decide/` reads a clock, a file, an environment variable or a random number.
    (tests/police/test_purity.py)
"""
