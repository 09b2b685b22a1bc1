"""Tests that hold the house: what was agreed about the code, its words and its documents, asserted about all of them.

Each fails with a sentence that says what to do. Each check is also shown a planted fault, to prove that it sees one.
"""
