"""ZMQ sockets that stamp and fingerprint what crosses them, without an event-loop turn or a ZMQ call of their own."""

import zmq
import zmq.asyncio

from .truth import fingerprint, mono_ns


class StampedSocket(zmq.Socket):
    """Reports each message: `on_sent(bytes, before_ns, after_ns)`, `on_asked(ns)`,
    `on_taken(bytes, before_ns, after_ns)`."""

    on_sent = on_asked = on_taken = None

    def watch_taking(self, on_asked, on_taken) -> None:
        """`on_asked` when the application asks for a message, `on_taken` when libzmq has handed it over."""
        self.on_asked, self.on_taken = on_asked, on_taken

    def send(self, data, *args, **kwargs):
        before = mono_ns()
        sent = super().send(data, *args, **kwargs)
        if self.on_sent:
            self.on_sent(data, before, mono_ns())
        return sent

    def recv(self, *args, **kwargs):
        if self.on_asked:
            self.on_asked(mono_ns())
        before = mono_ns()
        message = super().recv(*args, **kwargs)
        if self.on_taken:
            self.on_taken(message, before, mono_ns())
        return message


class StampedContext(zmq.Context):
    """A context whose sockets are stamped."""

    _socket_class = StampedSocket


class StampedAsyncSocket(zmq.asyncio.Socket):
    """The asyncio form. pyzmq's asyncio socket takes messages through a plain one of its own, which is stamped."""

    on_asked = None

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._shadow_sock = StampedSocket.shadow(self.underlying)

    def watch_taking(self, on_asked, on_taken) -> None:
        """As in the plain form."""
        self.on_asked = on_asked
        self._shadow_sock.watch_taking(None, on_taken)

    def recv(self, *args, **kwargs):
        if self.on_asked:
            self.on_asked(mono_ns())
        return super().recv(*args, **kwargs)


class StampedAsyncContext(zmq.asyncio.Context):
    """An asyncio context whose sockets are stamped."""

    _socket_class = StampedAsyncSocket


class Over(Exception):
    """Raised out of a release's own event loop to end it."""


def end_when_over(socket, inbox, life, linger_s: float) -> None:
    """A synchronous event loop blocks in `recv`: this one returns to look whether it is over, and then raises."""
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
    """Truth of a receiving socket: one line a frame with its taken and handled time."""

    def __init__(self, socket, truth, on_taken=None):
        self.truth = truth
        self.on_taken = on_taken
        self.frames = self.bytes = 0
        self.last_ns = mono_ns()
        self._open = None
        socket.watch_taking(self.flush, self._taken)

    def _taken(self, message, before_ns, at_ns):
        said = {"bytes": len(message), "hash": fingerprint(message)}
        self._open = {"n": self.frames, **said, "called_ns": before_ns, "taken_ns": at_ns}
        self.frames += 1
        self.bytes += len(message)
        self.last_ns = at_ns
        if self.on_taken:
            self.on_taken()

    def flush(self, handled_ns=None):
        """The frame in hand was handled; null when the application never asked for another."""
        if self._open:
            self.truth.write("taken", **self._open, handled_ns=handled_ns)
            self._open = None


class Outbox:
    """Truth of a sending socket. `about` is what the next message says, set just before the application sends it."""

    def __init__(self, name, socket, truth, tally):
        self.name, self.truth, self.tally = name, truth, tally
        self.about = None
        socket.on_sent = self._sent

    def _sent(self, message, before_ns, after_ns):
        said, self.about = self.about, None
        line = {"on": self.name, "n": self.tally.frames, "bytes": len(message), "hash": fingerprint(message)}
        self.truth.write("sent", **line, sent_ns=before_ns, accepted_ns=after_ns, **said)
        self.tally.add(len(message), said)
