"""Requests to tokengap's own processes, as `probe-user/src/message.rs` encodes them: MessagePack, each number in its shortest form."""

import struct


def encode(value) -> bytes:
    """Encodes a number, flag, text, string of bytes, list, or a map with one entry.

    >>> encode({"Process": [[1, 70000], {"Output": [True, b"/x"]}]}).hex()
    '81a750726f63657373929201ce0001117081a64f757470757492c3c4022f78'
    """
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        if value < 1 << 7:
            return bytes([value])
        size = next(size for size in range(4) if value < 1 << (8 << size))
        return bytes([0xCC + size]) + struct.pack(">" + "BHIQ"[size], value)
    if isinstance(value, str):
        text = value.encode()
        return bytes([0xA0 + len(text)]) + text
    if isinstance(value, bytes):
        return b"\xc4" + bytes([len(value)]) + value
    if isinstance(value, list):
        return bytes([0x90 + len(value)]) + b"".join(map(encode, value))
    ((name, content),) = value.items()
    return b"\x81" + encode(name) + encode(content)
