"""What the log in memory has beside the contract: sharing, backups, and a lock that keeps its line."""

from __future__ import annotations

import threading

from fleetgate.core.events import Returned
from fleetgate.log.memory import FairLock, MemoryLog
from fleetgate.log.protocol import START
from tests.memory_backup import RestorableStore


def test_a_connected_log_shares_store_and_clock() -> None:
    one = MemoryLog(lambda: 7)
    two = one.connect()
    one.lock()
    one.begin()
    position = one.append(START, 7, [Returned(id="a")], None)
    one.unlock()
    assert two.read(START)[0].position == position
    assert two.now() == 7


def test_a_backup_does_not_change_with_the_store() -> None:
    log = MemoryLog(store=(store := RestorableStore(lambda: 7)))
    backup = store.backup()
    log.lock()
    log.begin()
    log.append(START, 7, [Returned(id="a")], None)
    log.unlock()
    assert backup.rows == []
    assert len(log.store.rows) == 1


def test_the_lock_goes_to_those_who_wait_in_their_order() -> None:
    lock = FairLock()
    lock.acquire(wait=True)
    order: list[int] = []
    threads = []

    def wait(name: int) -> None:
        lock.acquire(wait=True)
        order.append(name)
        lock.release()

    for name in range(5):
        threads.append(threading.Thread(target=wait, args=(name,)))
        threads[-1].start()
        while len(lock._waiters) <= name:  # until this one waits in the queue
            pass
    assert not lock.acquire(wait=False)
    lock.release()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]
    assert not lock.held


def test_the_lock_survives_a_waiter_that_gives_up() -> None:
    lock = FairLock()
    lock.acquire(wait=True)
    turn = threading.Lock()
    lock._waiters.append(turn)
    lock._give_up(turn)
    lock.release()
    assert not lock.held
    lock.acquire(wait=True)
    lock._give_up(threading.Lock())  # interrupted just after its turn had come
    assert not lock.held
