"""Speed and memory of Holdfast, beside the machine's own limits and other libraries, measured in one run.

::

    python -m benchmarks --sizes 64,512,2048 --rounds 5 --out docs/benchmarks
"""
