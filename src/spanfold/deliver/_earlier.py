"""Send what earlier runs have left, while a process records runs of its own.

A collector was down, or a program was killed: the next run that is recorded
beside those runs has them sent too, as `deliver_run` would, by one daemon
thread. It looks for them when the records of this process have been sent, goes
on only while none of these wait, and takes at most half of one core. When the
process ends it stops where it is; what is left waits for the next one.

A run is sent by one process at a time (`Acknowledgements.claim`) and settled
once in this process. Nothing here raises into the host, and `flush()` counts
none of it.
"""

import logging
import math
import os
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from spanfold.deliver._answer import Answer
from spanfold.deliver._beside import LOOK_S, look_beside, why_left
from spanfold.deliver._outbox import Item, Outbox
from spanfold.deliver._past import FIRST_PAUSE_S, MAX_PAUSE_S, outbox_of, sender_of, unasked
from spanfold.deliver._send import BROKEN_PAUSE_S, Sender, deliver_batch
from spanfold.deliver._shipper import Shipper
from spanfold.errors import LockedError

log = logging.getLogger("spanfold")

AGAIN_S: Final = 60.0
"""Seconds after which a further run in the same folder has it looked at again."""
MAX_FOLDERS: Final = 100
"""Folders that wait to be looked at, or are known to have been: a program may have a folder for each of its runs."""
BEGIN_S: Final = 0.05
"""How long it lets the program go on with the run that has just begun."""
POLL_S: Final = 0.25
"""How often it is asked whether the records of this process have been sent."""
_YIELDS: Final = "records of this process come first"


class EarlierRuns:
    """Sends what waits of the runs beside those of this process, to destinations that stay the same, until `stop`."""

    def __init__(self) -> None:
        # Re-entrant: a signal handler may flush in the middle of it.
        self._wake = threading.Condition(threading.RLock())
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._lanes: dict[str, _Lane] = {}
        self._folders: deque[Path] = deque()
        self._looked: dict[Path, float] = {}
        self._settled: set[tuple[str, Path]] = set()
        unasked.add(self)

    def look(self, folders: Iterable[Path], shippers: Iterable[Shipper]) -> None:
        """Look for earlier runs in these folders, and send what waits; returns at once.

        Args:
            folders: Hold run directories.
            shippers: The destinations, with what sends the records of this process to them.
        """
        with self._wake:
            for shipper in shippers:
                if shipper.destination.key not in self._lanes:
                    self._lanes[shipper.destination.key] = _Lane(shipper, self._stopping, self._settled)
            now = time.monotonic()
            for folder in folders:
                if now - self._looked.get(folder, -math.inf) >= AGAIN_S and len(self._folders) < MAX_FOLDERS:
                    self._looked.pop(folder, None)
                    self._looked[folder] = now
                    self._folders.append(folder)
            while len(self._looked) > MAX_FOLDERS:
                del self._looked[next(iter(self._looked))]
            if self._folders and self._thread is None and not self._stopping.is_set():
                self._thread = threading.Thread(target=self._run, name="spanfold-earlier", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # the interpreter ends: the next process does it
                    self._thread = None

    def stop(self) -> None:
        """Begin no further request; returns without waiting."""
        self._stopping.set()

    def wait(self, deadline: float) -> None:
        """Wait for the answer to a request that was on its way when `stop` was called.

        One that comes later is not noted when the process ends, and those records are sent once more.
        """
        with self._wake:
            while any(lane.is_asking for lane in self._lanes.values()) and (left := deadline - time.monotonic()) > 0:
                self._wake.wait(left)

    def give_way(self, run_dir: Path, key: str, deadline: float) -> None:
        """Leave a run to somebody of this process who was asked to send it; waits until it is left."""
        run_dir = Path(os.path.realpath(run_dir))
        with self._wake:
            self._settled.add((key, run_dir))
            lane = self._lanes.get(key)
            while lane is not None and lane.holds(run_dir) and (left := deadline - time.monotonic()) > 0:
                self._wake.wait(left)

    # -- the thread

    def _run(self) -> None:
        try:
            self._loop()
        except Exception as error:  # a fault of ours: nobody waits for what is done here
            log.info("Earlier runs are not sent any more by this process (%s).", type(error).__name__)
        finally:
            with self._wake:
                for lane in self._lanes.values():
                    lane.end()
                self._thread = None
                self._wake.notify_all()

    def _loop(self) -> None:
        self._stopping.wait(BEGIN_S)
        while not self._stopping.is_set():
            with self._wake:
                lanes = list(self._lanes.values())
                if not self._folders and not any(lane.has_work for lane in lanes):
                    self._thread = None  # under the lock: whoever looks from now on starts another
                    return
            begun = time.thread_time()
            is_busy = self._look_at_next(lanes)
            for lane in lanes:
                is_busy |= lane.step()
                with self._wake:
                    self._wake.notify_all()  # of what `wait` and `give_way` wait for
            self._stopping.wait(min(1.0, time.thread_time() - begun) if is_busy else POLL_S)

    def _look_at_next(self, lanes: "Sequence[_Lane]") -> bool:
        """Look at a folder; whether there was one, and the time for it."""
        if not self._folders or not any(lane.may_send() for lane in lanes):
            return False
        with self._wake:
            folder = self._folders.popleft()
            keys = list(self._lanes)
        found = look_beside(folder, keys, time.monotonic() + LOOK_S)
        for run_dir, waits_for in found.waiting:
            for key in waits_for:
                if (key, run_dir) not in self._settled:
                    self._lanes[key].add(run_dir)
        if found.waiting or found.left:
            runs = _number(len(found.waiting), "earlier run")
            log.info("%s: records of %s wait%s.", folder, runs, _counted(found.left))
        return True


class _Lane:
    """The earlier runs that wait for one destination, one after the other."""

    def __init__(self, shipper: Shipper, stopping: threading.Event, settled: set[tuple[str, Path]]) -> None:
        self._shipper = shipper
        self.is_asking = False
        """Whether a request is on its way, or its answer is being noted."""
        self._stopping = stopping
        self._key = shipper.destination.key
        self._settled = settled
        """Key of a destination and run: what is not to be looked at again."""
        self._runs: deque[Path] = deque()
        self._outbox: Outbox | None = None
        """Of the first of them; kept over a pause, with what was read of it, but not its lock."""
        self._sender = _Yielding(sender_of(shipper.destination), self._ask)
        self._not_before = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._taken = 0
        """Requests of which something was settled."""
        self._broke: dict[Path, int] = {}
        """Runs that the server failed on -> how many requests it had taken by then."""
        self._left: Counter[str] = Counter()
        self._sent = 0

    @property
    def has_work(self) -> bool:
        """Whether there is a run that waits."""
        return bool(self._runs)

    def holds(self, run_dir: Path) -> bool:
        """Whether nobody else can send this run now."""
        return self._outbox is not None and self._outbox.run_dir == run_dir

    def add(self, run_dir: Path) -> None:
        """Send what waits of this run too."""
        if run_dir not in self._runs:
            self._runs.append(run_dir)

    def may_send(self) -> bool:
        """Whether nothing of this process waits, and nobody wants this to end."""
        return self._shipper.is_caught_up and time.monotonic() >= self._not_before and not self._stopping.is_set()

    def step(self) -> bool:
        """Send one request, or find that there is none; whether anything was done."""
        if not self._runs:
            return False
        run_dir = self._runs[0]
        if (self._key, run_dir) in self._settled:
            self._leave("")
            return True
        if not self.may_send():
            self._let_go()
            return False
        try:
            is_done = self._send_some(run_dir)
        except LockedError:
            self._leave("another process sends them")
        except Exception as error:  # the run's fault and not the destination's: others go on
            self._settled.add((self._key, run_dir))
            self._leave(f"cannot be read ({type(error).__name__})")
        else:
            if is_done:
                self._settled.add((self._key, run_dir))
        finally:
            self.is_asking = False
        return True

    def end(self) -> None:
        """Let the run and the connection go."""
        self.is_asking = False
        self._let_go()
        self._outbox = None
        self._runs.clear()
        self._sender.close()

    def _send_some(self, run_dir: Path) -> bool:
        """Send one request of a run; whether it is settled, for this process at least."""
        outbox = self._outbox = self._outbox or outbox_of(run_dir, self._shipper.destination)
        if why := why_left(outbox.journal_dir, self._key):
            self._leave(why)  # such as to a diagnose loop that goes on with it
            return False
        outbox.claim()
        if not outbox.fill():
            self._leave("")
            return True
        before = outbox.sent + outbox.refused
        answer = deliver_batch(outbox, self._sender, math.inf)
        if outbox.sent + outbox.refused > before:
            self._pause_s = FIRST_PAUSE_S
            self._taken += 1
        if answer.result != "retry" or answer.reason == _YIELDS:
            return False
        return self._hold_back(run_dir, answer)

    def _hold_back(self, run_dir: Path, answer: Answer) -> bool:
        """Pause as the destination wants it; whether the run is given up, as far as this process is concerned."""
        if answer.retry_after_s == math.inf:
            # The key or the address is wrong: nothing of this is tried again before the next look.
            while self._runs:
                self._leave(answer.reason)
            return False
        pause = self._pause_s * random.uniform(0.8, 1.2) if answer.retry_after_s is None else answer.retry_after_s
        self._pause_s = min(MAX_PAUSE_S, self._pause_s * 2)
        self._let_go()
        if answer.retry_after_s == BROKEN_PAUSE_S and len(self._runs) > 1:
            # The server or this run: others tell. It is the run when one of them was taken since it failed before.
            if self._taken > self._broke.setdefault(run_dir, self._taken):
                self._leave(answer.reason)
                return True
            self._set_aside()
            pause = min(pause, self._pause_s)
        self._not_before = time.monotonic() + pause
        return False

    def _ask(self) -> bool:
        """Whether a request may be sent now; asked before each."""
        self.is_asking = True
        return self.may_send() and (self._key, self._runs[0]) not in self._settled

    def _let_go(self) -> None:
        """Let others send the run while this pauses."""
        if self._outbox is not None:
            self._outbox.release()

    def _set_aside(self) -> None:
        """Go on with the next run, and with this one after all others."""
        self._let_go()
        self._sent += self._outbox.sent if self._outbox is not None else 0
        self._outbox = None
        self._runs.rotate(-1)

    def _leave(self, why: str) -> None:
        """Go on with the next run."""
        self._set_aside()
        self._runs.pop()
        if why:
            self._left[why] += 1
        if not self._runs and (self._sent or self._left):
            label = self._shipper.destination.label
            what = _number(self._sent, "record")
            was = "was" if self._sent == 1 else "were"
            log.info("%s: %s of earlier runs %s sent%s.", label, what, was, _counted(self._left))
            self._sent, self._left = 0, Counter()


class _Yielding:
    """Sends only when nothing else is to be sent first."""

    def __init__(self, sender: Sender, may_send: Callable[[], bool]) -> None:
        self._sender = sender
        self._may_send = may_send

    def send(self, items: Sequence[Item], deadline: float, patience: int = 1) -> Answer:
        """Send items in one request, or none."""
        if not self._may_send():
            return Answer("retry", _YIELDS)
        return self._sender.send(items, deadline, patience)

    def close(self) -> None:
        """Let connections go."""
        self._sender.close()


def _counted(left: Counter[str]) -> str:
    return f"; left: {', '.join(f'{count} {why}' for why, count in left.items())}" if left else ""


def _number(count: int, one: str) -> str:
    return f"{count} {one}" if count == 1 else f"{count} {one}s"
