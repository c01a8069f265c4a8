"""The workload. Sender, receiver and client compute it from the same options, and so need no extra channel, which a probe or a relay could
mistake for the engine's."""

import argparse
import dataclasses
import itertools
import uuid
from collections.abc import Iterator

# A token id encodes its position in the output: position p of a request is token FIRST_TOKEN + p. Prompt ids are lower.
FIRST_TOKEN = 1000
# With --own-ids, distance between the first ids of two requests. No output is as long.
SPAN = 1 << 16
PROMPT = [100, 101, 102, 103, 104, 105, 106]
STOP_TOKEN = 2
_RIDS = uuid.uuid5(uuid.NAMESPACE_URL, "tokengap/engine")


@dataclasses.dataclass(frozen=True)
class Request:
    """One request of the plan."""

    rid: str
    index: int
    tokens: int
    start_step: int
    stream: bool
    # None, or the group of the request: ("batch", common rid, index, size) or ("samples", "", index, size). Index 0 of samples warms up
    # the prefix cache.
    group: tuple | None
    # length: runs to its limit. stop: ends on a stop token. abort: a frame aborts it halfway. abort-queued: never runs, and only returns
    # an AbortReq.
    end: str


@dataclasses.dataclass(frozen=True)
class Plan:
    """Parameters shared by all processes of a run."""

    senders: int
    requests: int
    tokens: int
    rounds: int  # 0: until stopped
    burst: int
    stagger: int
    stops: int
    aborts: int
    queued_aborts: int
    unary: int
    group: int
    text: str
    seed: str

    def requests_of(self, sender: int, round_: int) -> list[Request]:
        """Requests of one sender in one round, in starting order."""
        ends = itertools.chain(
            itertools.repeat("stop", self.stops),
            itertools.repeat("abort", self.aborts),
            itertools.repeat("abort-queued", self.queued_aborts),
            itertools.repeat("length"),
        )
        return [
            Request(
                rid=self.rid_of(sender, round_, index, group := self.group_of(sender, round_, index)),
                index=index,
                tokens=self.tokens,
                group=group,
                start_step=index * self.stagger,
                # Unary requests are at the end of the list, where requests run to their limit.
                stream=index < self.requests - self.unary,
                end="warm-up" if group and group[0] == "samples" and group[2] == 0 else end,
            )
            for index, end in zip(range(self.requests), ends)
        ]

    def group_of(self, sender: int, round_: int, index: int) -> tuple | None:
        """Alternates between a batch under one rid and samples of one prompt."""
        if not self.group:
            return None
        number, place = divmod(index, self.group)
        if number % 2:
            return ("samples", "", place, self.group)
        return ("batch", uuid.uuid5(_RIDS, f"{self.seed}/{sender}/{round_}/batch{number}").hex, place, self.group)

    def rid_of(self, sender: int, round_: int, index: int, group: tuple | None) -> str:
        """Request id on the wire."""
        if group and group[0] == "batch":
            return f"{group[1]}_{group[2]}"
        return uuid.uuid5(_RIDS, f"{self.seed}/{sender}/{round_}/{index}").hex

    def round(self, round_: int) -> list[Request]:
        """Requests of all senders in one round."""
        return [request for sender in range(self.senders) for request in self.requests_of(sender, round_)]

    def numbers(self) -> Iterator[int]:
        """Numbers of the rounds."""
        return itertools.count() if self.rounds == 0 else iter(range(self.rounds))

    @property
    def rounds_ahead(self) -> int:
        """Number of rounds whose requests are registered before their first frame. All rounds, or for an endless plan enough unless the
        tokenizer is further behind its scheduler."""
        return self.rounds or 8

    def step(self, request: Request, done: int) -> int:
        """Number of tokens in the next step of a request that has `done` tokens."""
        wanted = 1 + (request.index + done) % self.burst
        return min(wanted, request.tokens - done)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a plan. Every process of a run needs the same values."""
    group = parser.add_argument_group("workload (the same for every process of a run)")
    group.add_argument("--senders", type=int, default=1, help="schedulers that send (data parallel ranks)")
    group.add_argument("--requests", type=int, default=64, help="requests of each sender in a round")
    group.add_argument("--tokens", type=int, default=200, help="tokens of each request")
    group.add_argument("--rounds", type=int, default=1, help="rounds of requests; 0: until stopped")
    group.add_argument("--burst", type=int, default=1, help="maximum tokens per step, as in speculative decoding")
    group.add_argument("--stagger", type=int, default=0, help="steps between the starts of two requests")
    group.add_argument("--stops", type=int, default=0, help="requests that end on a stop token")
    group.add_argument("--aborts", type=int, default=0, help="requests aborted while they run")
    group.add_argument("--queued-aborts", type=int, default=0, help="requests aborted before they run")
    group.add_argument("--unary", type=int, default=0, help="requests that do not stream")
    group.add_argument("--group", type=int, default=0, help="size of groups: batches and samples (n > 1) in turn")
    group.add_argument("--text", choices=("words", "calls"), default="words", help="output: a word for each token, or tool calls")
    group.add_argument("--seed", default="0", help="any string; different seeds give different rids")


def from_options(options: argparse.Namespace) -> Plan:
    """The plan that the options describe."""
    plan = Plan(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Plan)})
    if plan.stops + plan.aborts + plan.queued_aborts + plan.unary > plan.requests:
        raise SystemExit("--stops, --aborts, --queued-aborts and --unary together exceed --requests")
    if min(plan.senders, plan.requests, plan.tokens, plan.burst) < 1:
        raise SystemExit("--senders, --requests, --tokens and --burst must be at least 1")
    return plan
