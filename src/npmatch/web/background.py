"""Work in a background thread, whose problem the page shows."""

from __future__ import annotations

from threading import Event, Thread

from npmatch.errors import NPMatchError


class Background:
    """The state behind a page. `start` begins its work in a background thread."""

    def __init__(self, name: str) -> None:
        """`name` is that of the thread."""
        self.problem: str | None = None  # why pictures or models are missing, shown on the page
        self._stop = Event()
        self._thread = Thread(target=self._run, daemon=True, name=name)

    def start(self) -> None:
        """Starts the background thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stops the background thread; a training of its own process goes on."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._work()
        except NPMatchError as error:
            self.problem = str(error)
        except Exception as error:  # nobody joins this thread to see the error: the page must show it
            if not self._stop.is_set():
                self.problem = f"{type(error).__name__}: {error}"
                raise

    def _work(self) -> None:
        """What the thread does, until it is done or `_stop` is set."""
        raise NotImplementedError
