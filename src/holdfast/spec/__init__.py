"""What things are: values and bytes. No I/O, no clock, no torch.

The nouns of Holdfast, one name each, everywhere: code, events, command line, documents.

**Run** one training, whatever it survives. **Attempt** one life of its processes, numbered, claimed in the store.
**State** something named that can be captured and restored. **Leaf** one tensor or array of it.
**Snapshot** the state of one step in host memory. **Checkpoint** an immutable, verified set of objects for one step.
**Manifest** the document whose existence makes it one. **Store** names to bytes, written once.
**Keeper** the small process beside each rank that holds snapshots and does everything slow.
**Ranks** the processes that commit together. **Policy** a pure decision. **Verdict** how an attempt ended.
**Ledger** what happened, as events.
"""
