"""Where objects are kept: implementations of the `Store` and `Digest` ports.

`local` writes to a file system, through the narrow seam `disk`, so that a crash can be tested at every single
operation. `memory` keeps objects in a dict, for tests. `digest` computes what manifests vouch with. None of them knows
what a checkpoint is.
"""
