"""Truth of a `SocketMapping`, the releases' table of sockets to workers, which are opened on demand."""

from .sockets import Outbox
from .truth import Tally, describe


class WorkerTally(Tally):
    """Counts of one worker's connection, also added to the total."""

    def __init__(self, total: Tally):
        super().__init__()
        self.total = total

    def add(self, size: int, described: dict) -> None:
        super().add(size, described)
        self.total.add(size, described)


def watch(mixin, truth, total: Tally) -> dict[str, Tally]:
    """Replaces the class in the release's module by one that records sent messages. Returns the counts by endpoint, which are added when
    sockets are opened."""
    tallies: dict[str, Tally] = {}

    class Watched(mixin.SocketMapping):
        about = None

        def _register_ipc_mapping(self, ipc_name, *args, **kwargs):
            super()._register_ipc_mapping(ipc_name, *args, **kwargs)
            tallies[ipc_name] = WorkerTally(total)
            self.outboxes = getattr(self, "outboxes", {})
            self.outboxes[ipc_name] = Outbox("output", self._mapping[ipc_name], truth, tallies[ipc_name])
            self.outboxes[ipc_name].about = self.about

        def send_output(self, ipc_name, output, *args, **kwargs):
            self.about = describe(output)
            if ipc_name in self._mapping:
                self.outboxes[ipc_name].about = self.about
            super().send_output(ipc_name, output, *args, **kwargs)

        def close(self, linger_ms: int) -> None:
            """Closes every socket once its messages have left."""
            for socket in self._mapping.values():
                socket.close(linger=linger_ms)

    mixin.SocketMapping = Watched
    return tallies


def totals(tallies: dict[str, Tally]) -> dict[str, dict]:
    """Counts of every worker by endpoint."""
    return {endpoint: tally.totals() for endpoint, tally in tallies.items()}
