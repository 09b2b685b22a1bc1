"""Stage: copy the state of a step boundary into a staging buffer, laid out as the files that will be written.

Two slots, so that a crash in the middle of a copy leaves the previous snapshot whole. A slot is reused only after its
snapshot was committed or has failed; when none is free a save waits for the next boundary instead of stopping training.

With overlap, what only changes in an optimizer's step is copied by a thread under the next forward and backward; a
fence ahead of the next step waits for the rest. A copy into which something wrote after all is thrown away, and from
then on everything is copied at once.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ..spec import names
from ..spec.leaves import PAGE_BYTES, Image, Leaf, lay_out
from ..spec.names import CheckpointId
from ..spec.ports import Capture, Clock, Ranks
from ..spec.snapshot import Snapshot, Span
from .buffers import StagingBuffer
from .link import KeeperLink, Outcome

_COPY_DEADLINE_S = 600.0
_SLACK_BYTES = 1 << 20
"""Room for documents and metrics to grow before a larger buffer is needed."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything goes in a buffer, for one structure of the state."""

    leaves: Mapping[str, tuple[Leaf, ...]]
    images: Mapping[str, Image]
    spans: Mapping[str, Span]
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Copying:
    """A snapshot that is not whole yet."""

    capture: Capture
    snapshot: Snapshot
    done: Future[None]


class Stager:
    """Owns the staging buffers of one trainer."""

    def __init__(self, link: KeeperLink, ranks: Ranks, clock: Clock, slots: int, *, overlap: bool = False) -> None:
        self.overlap = overlap
        """Whether captures may leave large copies for later; off for good once that has gone wrong."""
        self._copying: _Copying | None = None
        self._worthless: list[Outcome] = []
        self._copier = ThreadPoolExecutor(1, thread_name_prefix="holdfast-copy")
        self._link = link
        self._ranks = ranks
        self._clock = clock
        self._slots = slots
        self._buffers: dict[int, StagingBuffer] = {}
        self._layout = Layout({}, {}, {}, 0)
        self._warming: Future[list[StagingBuffer]] | None = None

    def free_slot(self) -> int | None:
        """Tell which slot can be filled now; None when all are still being written."""
        busy = self.busy_slots
        return next((slot for slot in range(self._slots) if slot not in busy), None)

    @property
    def busy_slots(self) -> set[int]:
        """Slots that are being filled, or whose snapshots are not committed yet."""
        being_filled = {self._copying.snapshot.slot} if self._copying is not None else set()
        return being_filled | self._link.busy_slots

    def fence(self) -> None:
        """Wait until nothing of the state is being copied any more: called ahead of every optimizer step."""
        if self._copying is not None:
            self._copying.done.result(_COPY_DEADLINE_S)
            self.settle()

    def settle(self) -> None:
        """Hand over a snapshot whose copy is done, or throw it away; only the training thread may call this."""
        copying = self._copying
        if copying is None or not copying.done.done():
            return
        copying.done.result()
        self._copying = None
        why = copying.capture.spoiled()
        if not why:
            self._link.submit(copying.snapshot)
            return
        self.overlap = False
        why += "; from now on everything is copied at once, as without overlap"
        self._worthless.append(Outcome(str(copying.snapshot.checkpoint), why, 0.0))

    def worthless(self) -> list[Outcome]:
        """Take the outcomes of copies that were thrown away since the last call."""
        outcomes, self._worthless = self._worthless, []
        return outcomes

    def warm(self, parts: Mapping[str, Sequence[Leaf]]) -> None:
        """Begin to allocate and touch all slots in the background, for a state of this structure."""
        nbytes = self._fit(parts).nbytes + _SLACK_BYTES
        thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-warm")
        self._warming = thread.submit(lambda: [StagingBuffer.allocate(nbytes) for _ in range(self._slots)])
        thread.shutdown(wait=False)

    def stage(
        self, slot: int, checkpoint: CheckpointId, capture: Capture, blobs: Mapping[str, bytes], step: Mapping[str, Any]
    ) -> Snapshot:
        """Copy a capture into a free slot and hand it to the keeper. Raises: Unavailable when memory is short."""
        taken_at = self._clock.time()
        layout = self._fit(capture.parts)
        buffer = self._buffer(slot, layout.nbytes + sum(map(len, blobs.values())))
        targets: dict[str, list[memoryview]] = {}
        for part, image in layout.images.items():
            memory = buffer.memory[layout.spans[part].offset :]
            memory[: len(image.header)] = image.header
            targets[part] = [
                memory[start : start + leaf.nbytes]
                for start, leaf in zip(image.starts, layout.leaves[part], strict=True)
            ]
        self.fence()
        whole = capture.copy_into(targets)
        snapshot = Snapshot(
            checkpoint=checkpoint,
            slot=slot,
            taken_at=taken_at,
            parts=layout.spans,
            blobs=_append(buffer.memory, layout.nbytes, blobs),
            leaves={
                part: tuple(zip(layout.leaves[part], image.starts, strict=True))
                for part, image in layout.images.items()
            },
            step=step,
        )
        if whole:
            self._link.submit(snapshot)
        else:
            self._copying = _Copying(capture, snapshot, self._copier.submit(capture.copy_rest))
        return snapshot

    def _fit(self, parts: Mapping[str, Sequence[Leaf]]) -> Layout:
        """Lay the state out; the last layout serves as long as its structure does not change."""
        leaves = {part: tuple(of_part) for part, of_part in parts.items() if of_part}
        if leaves == self._layout.leaves:
            return self._layout
        images = {part: lay_out(of_part) for part, of_part in leaves.items()}
        spans = {}
        offset = 0
        for part, image in images.items():
            spans[part] = Span(names.part_file(part, self._ranks.rank), offset, image.nbytes)
            offset += image.nbytes + -image.nbytes % PAGE_BYTES
        self._layout = Layout(leaves, images, spans, offset)
        return self._layout

    def _buffer(self, slot: int, nbytes: int) -> StagingBuffer:
        if self._warming is not None:
            warming, self._warming = self._warming, None
            for number, warm in enumerate(warming.result()):
                if number in self._buffers:
                    warm.close()  # a save came first, and its snapshot may be waiting in the slot's memory
                else:
                    self._register(number, warm)
        if slot not in self._buffers or self._buffers[slot].nbytes < nbytes:
            self._register(slot, StagingBuffer.allocate(nbytes + nbytes // 16 + _SLACK_BYTES))
        return self._buffers[slot]

    def _register(self, slot: int, buffer: StagingBuffer) -> None:
        self._buffers[slot] = buffer
        self._link.register(slot, buffer)


def _append(memory: memoryview, offset: int, blobs: Mapping[str, bytes]) -> tuple[Span, ...]:
    spans = []
    for name, data in blobs.items():
        memory[offset : offset + len(data)] = data
        spans.append(Span(name, offset, len(data)))
        offset += len(data)
    return tuple(spans)
