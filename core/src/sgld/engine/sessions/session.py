"""One session inside the engine: what it is made of and where it stands."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from sgld.causal.blocks import BlockPlan, Chunk
from sgld.causal.state import CausalState
from sgld.engine.job import Job
from sgld.engine.running import Running
from sgld.engine.sessions.outlet import Outlet
from sgld.engine.sessions.snapshot import Snapshot
from sgld.engine.sessions.turns import Reader
from sgld.realtime.adapter import RealtimeAdapter
from sgld.realtime.messages import SessionCommand, SessionReport, SessionRequest

if TYPE_CHECKING:
    from sgld.engine.sessions.jobs import FrameWork

Phase = Literal["opening", "idle", "chunk", "frames", "commit"]
REMEMBERED: Final = 64
"""Answers that are kept for commands that are sent again."""


class Session:
    """State across chunks, the controls to come, and what runs for it now.

    `phase`: `opening` until the open stages have made `state`; `idle` between chunks; `chunk`,
    `frames` (only where they are not decoded beside the engine) and `commit` while their stages
    run. `running` is what waits for a forward, in all phases but `idle`.

    Args:
        request: what it starts from.
        params: the family's validated parameters.
        plan: sizes of its chunks, without an end.
        adapter: its controls.
        outlet: takes its chunks.
        reader: knows when the reader runs dry.
        seniority: smaller is older; decides between equal deadlines.
    """

    def __init__(
        self,
        *,
        request: SessionRequest,
        params: Any,
        plan: BlockPlan,
        adapter: RealtimeAdapter,
        outlet: Outlet,
        reader: Reader,
        seniority: int,
    ) -> None:
        self.request = request
        self.options = request.options
        self.params = params
        self.plan = plan
        self.adapter = adapter
        self.outlet = outlet
        self.reader = reader
        self.seniority = seniority
        self.state: CausalState | None = None
        self.phase: Phase = "opening"
        self.running: Running | None = None
        self.chunk: Chunk | None = None
        self.first_index = 0
        """Index of the first chunk that it made itself."""
        self.paused = not request.options.free_running
        self.credits = 0
        """Chunks asked for by `step` that have not begun."""
        self.final = False
        """Whether the last chunk is on its way."""
        self.pending: deque[SessionCommand] = deque()
        self.marks: deque[tuple[int, Mapping[str, Any]]] = deque(
            maxlen=request.options.rewind_chunks
        )
        """Chunk index → the controls as they were before it, of chunks that can be taken back."""
        self.before: Mapping[str, Any] = {}
        """The controls as they were before the chunk that is being made."""
        self.event_id: int | None = None
        self.seconds: dict[str, float] = {}
        """Part → seconds of device work, of the chunk that is being made."""
        self.committed = 0.0
        """Seconds of the last commit; told with the next chunk."""
        self.work: FrameWork | None = None
        self.made: Job | None = None
        """What decodes the chunk, and the job that made it, while `phase` is `frames`."""
        self.reply: SessionCommand | None = None
        """The `open` or `reset` that is answered once `opening` is over."""
        self.restoring: Snapshot | None = None
        """What to continue from, once `opening` is over."""
        self.promised = 0
        """Bytes that are reserved for its state."""
        self.promised_undo = 0
        """Bytes of host memory that are reserved for the chunks that it can take back."""
        self.warned = False
        """Whether it was said that it holds more."""
        self.announced = False
        """Whether its owner was told that it is open."""
        self.ended: SessionReport | None = None
        """Its last report, once it is over; sent when the lane has let go of the state."""
        self._answers: OrderedDict[int, tuple[str, SessionReport]] = OrderedDict()

    @property
    def id(self) -> str:
        """Unique among the live sessions."""
        return self.request.id

    @property
    def next_index(self) -> int:
        """Index of the first chunk that has not begun."""
        if self.phase in ("chunk", "frames", "commit") and self.chunk is not None:
            return self.chunk.index + 1
        return self.state.next_index if self.state is not None else self.first_index

    @property
    def urgency(self) -> tuple[float, int]:
        """Smaller goes first: the deadline, then seniority."""
        return self.reader.dry, self.seniority

    def wants_chunk(self, beside: int) -> bool:
        """Whether its next chunk may begin, with `beside` chunks on the lane."""
        if self.phase != "idle" or self.pending or self.final or self.ended is not None:
            return False
        if self.paused and not self.credits:
            return False
        waiting = 0 if self.options.on_full == "drop" else self.outlet.waiting
        return waiting + beside < self.options.queue_chunks

    def is_last(self, index: int) -> bool:
        """Whether nothing follows chunk `index`."""
        most = self.options.max_chunks
        return bool(most) and index + 1 - self.first_index >= most

    def mark(self) -> None:
        """The chunk that is being made is final: what its controls were is needed to go back."""
        if self.chunk is not None and self.options.rewind_chunks:
            self.marks.append((self.chunk.index, self.before))

    def remember(self, command: SessionCommand, report: SessionReport) -> None:
        """Keep an answer for the case that the command comes again."""
        if command.number and command.kind != "snapshot":
            self._answers[command.number] = (command.kind, report)
            while len(self._answers) > REMEMBERED:
                self._answers.popitem(last=False)

    def answered(self, command: SessionCommand) -> tuple[str, SessionReport] | None:
        """Kind and answer of the command that had this number before."""
        return self._answers.get(command.number) if command.number else None

    def waits(self, number: int) -> bool:
        """Whether a command with this number is still to take effect."""
        owed = self.reply is not None and self.reply.number == number
        return bool(number) and (owed or any(row.number == number for row in self.pending))
