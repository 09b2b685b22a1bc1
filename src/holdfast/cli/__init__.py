"""The command line: one verb each, `--json` on every one that prints facts.

::

    app                         the commands together; errors as one line and an exit code
    ls show verify diff         what is there, in it, is it sound, what changed
    export                      one checkpoint as plain files
    retention                   pin, unpin, prune
    demonstrate                 demo
    address inventory output    what a command was told, what the store holds, how facts are printed

Each command collects its facts as plain data; `--json` prints them as they are, a table is a view of them.
"""


def main() -> None:
    """Run the command line, and end the process with its exit code."""
    from .app import app

    app()
