"""One forward: which calls share it, where their results go, and what a failure takes along."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import structlog
import torch

from sgld.engine.batching import BatchLimit, NotPartableError, gather, join, part
from sgld.engine.call import Call
from sgld.engine.memo import Memo
from sgld.engine.residency.store import ComponentStore
from sgld.engine.running import Running
from sgld.engine.timing import Share, Stopwatch, Watch
from sgld.platforms.streams import keep

log = structlog.get_logger("sgld.engine")


class Member(NamedTuple):
    """One call in a forward, and where its result goes."""

    running: Running
    place: int
    call: Call


class Forwards:
    """Runs calls on the components, several at once where they may share a forward.

    Args:
        store: the components.
        device: where they run.
        limit: how large a shared forward may become.
        memo: results of calls that need not be computed again.
        fault: told of a job whose call failed, with the error.
        together: whether calls of different jobs may share a forward.
    """

    def __init__(
        self,
        store: ComponentStore,
        device: torch.device,
        limit: BatchLimit,
        memo: Memo,
        fault: Callable[[Running, Exception], None],
        *,
        together: bool = True,
    ) -> None:
        self._store = store
        self._device = device
        self._limit = limit
        self._together = together
        self._memo = memo
        self._fault = fault
        self._unshared: set[tuple[str, str]] = set()
        self.counts: dict[str, int] = {}
        # A module may keep notes on itself while it runs, so one thread at a time.
        self._in_use: dict[str, threading.Lock] = {}

    def run(self, head: Member, line: Iterable[Running]) -> list[Running]:
        """Give the head's call its result, and those of `line` that can have theirs by the way.

        The result is the jobs that took part.
        """
        key = head.call.memo_key()
        if key is not None and key in self._memo:
            head.running.settle(head.place, self._memo.get(key)[1], None)
            return [head.running]
        members = [head, *self._companions(head, line)]
        self._forward(members)
        return list(dict.fromkeys(member.running for member in members))

    def run_alone(self, member: Member) -> None:
        """Give a call its result without sharing anything with others: to the bit what it would be
        if there were none. Raises what the component raises."""
        key = member.call.memo_key()
        key = None if key is None else ("alone", key)
        if key is not None and key in self._memo:
            member.running.settle(member.place, self._memo.get(key)[1], None)
            return
        results, watch = self._call([member.call])
        if key is not None:
            self._memo.put(key, results[0])
        member.running.settle(member.place, results[0], watch)

    def beside(self, call: Call) -> tuple[Any, Watch]:
        """Run a call on another thread than the engine's, on that thread's current stream; its
        component is `stays`. Raises what the component raises."""
        _keep(dict(call.inputs))
        results, watch = self._call([call])
        return results[0], watch

    def stays(self, component: str) -> bool:
        """Whether a component is always on the device."""
        return self._store.stays(component)

    def close(self) -> None:
        """Forget every result and free the components."""
        self._memo.clear()
        self._store.close()

    def _companions(self, head: Member, line: Iterable[Running]) -> list[Member]:
        call = head.call
        if (call.component, call.method) in self._unshared:
            return []
        candidates: list[Member] = []
        # What is remembered, or computed by this very forward, need not be computed again.
        known = {call.memo_key()}
        for running in line if self._together else [head.running]:
            for place, other in running.waiting():
                if running is head.running and place == head.place:
                    continue
                key = other.memo_key()
                if key is None or (key not in known and key not in self._memo):
                    candidates.append(Member(running, place, other))
                    known.add(key)
        chosen = gather(call, [member.call for member in candidates], self._limit)
        return [candidates[position] for position in chosen]

    def _forward(self, members: Sequence[Member]) -> None:
        calls = [member.call for member in members]
        try:
            results, watch = self._call(calls)
        except Exception as error:
            if len(members) == 1:
                self._fault(members[0].running, error)
                return
            log.warning("shared forward failed, running its calls alone", error=repr(error))
            if isinstance(error, NotPartableError):
                self._unshared.add((calls[0].component, calls[0].method))
        else:
            self._settle(members, results, watch)
            return
        # A shared forward that fails must not take its companions along: each one again, alone, so
        # that only the one at fault fails. Outside the `except`, where the failed forward's
        # tensors are free again: it may have failed for want of memory.
        for member in members:
            if not member.running.closed:
                self._forward([member])

    def _call(self, calls: Sequence[Call]) -> tuple[list[Any], Stopwatch]:
        first = calls[0]
        in_use = self._in_use.setdefault(first.component, threading.Lock())
        with in_use, self._store.acquire(first.component) as module:
            method = module if first.method == "forward" else getattr(module, first.method)
            watch = Stopwatch(self._device)
            # A name in profiles; microseconds when nobody profiles.
            with torch.profiler.record_function(f"{first.component}.{first.method} x{len(calls)}"):
                result = method(**join(calls))
            watch.stop()
            self.counts[first.component] = self.counts.get(first.component, 0) + 1
        return part(result, calls), watch

    def _settle(self, members: Sequence[Member], results: list[Any], watch: Stopwatch) -> None:
        for member, result in zip(members, results, strict=True):
            key = member.call.memo_key()
            if key is not None:
                self._memo.put(key, result)
            share = watch if len(members) == 1 else Share(watch, len(members))
            member.running.settle(member.place, result, share)


def _keep(value: Any) -> None:
    """Tell the allocator that the current stream reads the tensors of a nest, so that their memory
    is not given out again before it has: they may come from another stream."""
    if isinstance(value, torch.Tensor):
        keep(value)
    elif isinstance(value, dict):
        for member in value.values():
            _keep(member)
    elif isinstance(value, list | tuple):
        for member in value:
            _keep(member)
