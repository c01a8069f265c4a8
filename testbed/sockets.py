"""ZMQ sockets that timestamp and hash their messages, without additional event-loop turns or ZMQ calls."""

import zmq
import zmq.asyncio

from .truth import fingerprint, mono_ns


class StampedSocket(zmq.Socket):
    """Reports each message: `on_sent(bytes, before_ns, after_ns)`, `on_requested(ns)`,
    `on_received(bytes, before_ns, after_ns)`."""

    on_sent = on_requested = on_received = None

    def watch_receives(self, on_requested, on_received) -> None:
        """Calls `on_requested` when the application requests a message, and `on_received` when libzmq has returned it."""
        self.on_requested, self.on_received = on_requested, on_received

    def send(self, data, *args, **kwargs):
        before = mono_ns()
        sent = super().send(data, *args, **kwargs)
        if self.on_sent:
            self.on_sent(data, before, mono_ns())
        return sent

    def recv(self, *args, **kwargs):
        if self.on_requested:
            self.on_requested(mono_ns())
        before = mono_ns()
        message = super().recv(*args, **kwargs)
        if self.on_received:
            self.on_received(message, before, mono_ns())
        return message


class StampedContext(zmq.Context):
    """A context with timestamping sockets."""

    _socket_class = StampedSocket


class StampedAsyncSocket(zmq.asyncio.Socket):
    """The asyncio variant. pyzmq's asyncio socket receives messages through an inner plain socket, which takes the timestamps."""

    on_requested = None

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._shadow_sock = StampedSocket.shadow(self.underlying)

    def watch_receives(self, on_requested, on_received) -> None:
        """As in the plain variant."""
        self.on_requested = on_requested
        self._shadow_sock.watch_receives(None, on_received)

    def recv(self, *args, **kwargs):
        if self.on_requested:
            self.on_requested(mono_ns())
        return super().recv(*args, **kwargs)


class StampedAsyncContext(zmq.asyncio.Context):
    """An asyncio context with timestamping sockets."""

    _socket_class = StampedAsyncSocket


class Over(Exception):
    """Raised in a release's event loop to end it."""


def end_when_over(socket, inbox, life, linger_s: float) -> None:
    """Makes `recv`, in which a synchronous event loop blocks, poll for the end of the run and then raise `Over`."""
    wait = socket.recv

    def recv_until_over(*args, **kwargs):
        while True:
            if socket.poll(50):
                return wait(*args, **kwargs)
            quiet = mono_ns() - inbox.last_ns > linger_s * 1e9
            if life.expired or (life.stopped.is_set() and quiet):
                raise Over

    socket.__dict__["recv"] = recv_until_over


class Inbox:
    """Truth of a receiving socket: one line per frame, with the times at which it was received and processed."""

    def __init__(self, socket, truth, on_received=None):
        self.truth = truth
        self.on_received = on_received
        self.frames = self.bytes = 0
        self.last_ns = mono_ns()
        self._open = None
        socket.watch_receives(self.flush, self._received)

    def _received(self, message, before_ns, at_ns):
        described = {"bytes": len(message), "hash": fingerprint(message)}
        self._open = {"n": self.frames, **described, "called_ns": before_ns, "received_ns": at_ns}
        self.frames += 1
        self.bytes += len(message)
        self.last_ns = at_ns
        if self.on_received:
            self.on_received()

    def flush(self, processed_ns=None):
        """Records the last frame as processed; null if the application never requested another one."""
        if self._open:
            self.truth.write("received", **self._open, processed_ns=processed_ns)
            self._open = None


class Outbox:
    """Truth of a sending socket. `about` describes the next message and is set just before the send."""

    def __init__(self, name, socket, truth, tally):
        self.name, self.truth, self.tally = name, truth, tally
        self.about = None
        socket.on_sent = self._sent

    def _sent(self, message, before_ns, after_ns):
        described, self.about = self.about, None
        line = {"on": self.name, "n": self.tally.frames, "bytes": len(message), "hash": fingerprint(message)}
        self.truth.write("sent", **line, sent_ns=before_ns, accepted_ns=after_ns, **described)
        self.tally.add(len(message), described)
