"""What tests need, shipped: a suite per port, and stand-ins that fail on cue.

`contracts` holds one class per port; a subclass that names an implementation runs every sentence of the port against
it. `disk` is a disk in memory that can crash at any operation, and then shows what a power loss may have left. `clock`
tells the time instead of waiting for it. A store without a disk is `holdfast.storage.memory.MemoryStore`.

Nothing here imports pytest: the suites are plain asserts in classes that pytest collects. For detailed assertion
messages, call `pytest.register_assert_rewrite("holdfast.testing.contracts")` in your `conftest.py`.
"""
