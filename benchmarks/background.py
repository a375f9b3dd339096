"""Something that goes on in a thread while a block runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeated(step: Callable[[], object]) -> Iterator[None]:
    """Call a function over and over. It returns soon: the last call has ended when the block is left."""
    stopped = threading.Event()

    def work() -> None:
        while not stopped.is_set():
            step()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
