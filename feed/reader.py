"""Reads a feed with only pyzmq and msgpack, without tokengap code. docs/reference/feed.md includes the part between the markers."""

import collections
import sys

# --- reader
import msgpack
import zmq


def messages(endpoint, *topics, patience=10):
    socket = zmq.Context.instance().socket(zmq.SUB)
    socket.setsockopt(zmq.RCVTIMEO, patience * 1000)
    for topic in topics:
        socket.subscribe(topic)
    socket.connect(endpoint)
    while True:
        topic, body = socket.recv_multipart()
        message = msgpack.unpackb(body, strict_map_key=False)
        if message["schema"] != "tokengap.feed/1":
            raise ValueError(f"{endpoint} speaks {message['schema']}")
        yield topic.decode(), message


# --- end


def main(endpoint, want):
    """Reads until every topic has delivered `want` messages, then prints a summary."""
    count, last, whats = collections.Counter(), {}, collections.Counter()
    tokens = None
    for topic, message in messages(endpoint, "report", "events", "stream"):
        known = last.get(topic)
        # A start message repeats the number of the previous message.
        step = 0 if message["kind"] == "start" else 1
        assert known is None or message["seq"] == known + step, (topic, known, message["seq"])
        last[topic] = message["seq"]
        count[topic] += 1
        body = message["body"]
        if topic == "report":
            assert body["schema"] == "tokengap.report/2"
            tokens = body["tokens"]["sent"]
        for event in body["events"] if topic == "events" else ():
            what = event["what"]
            whats.update(list(what))
            for frame in [what["sent"]] if "sent" in what else ():
                assert all("ids" not in chunk and chunk["rid"] for chunk in frame["chunks"])
        if len(count) == 3 and min(count.values()) >= want:
            break
    print(f"{dict(count)} from {message['pod']}: {dict(whats)}, {tokens} tokens sent")
    assert whats["sent"] > 0 and tokens > 0


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
