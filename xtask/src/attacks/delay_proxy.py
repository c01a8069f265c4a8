"""Forwards connections with a delay in both directions, from another loopback address than the flood's.

usage: delay_proxy.py LISTEN_PORT TARGET_PORT DELAY_S SOURCE_ADDRESS
"""

import asyncio
import sys

LISTEN_PORT, TARGET_PORT = int(sys.argv[1]), int(sys.argv[2])
DELAY_S, SOURCE_ADDRESS = float(sys.argv[3]), sys.argv[4]


async def copy(reader, writer):
    loop = asyncio.get_running_loop()
    try:
        while data := await reader.read(65536):
            loop.call_later(DELAY_S, lambda data=data: writer.is_closing() or writer.write(data))
    except OSError:
        pass
    await asyncio.sleep(2 * DELAY_S)
    writer.close()


async def forward(reader, writer):
    await asyncio.sleep(DELAY_S)
    try:
        upstream = await asyncio.open_connection("127.0.0.1", TARGET_PORT, local_addr=(SOURCE_ADDRESS, 0))
    except OSError:
        writer.close()
        return
    await asyncio.gather(copy(reader, upstream[1]), copy(upstream[0], writer), return_exceptions=True)


async def main():
    await asyncio.start_server(forward, "127.0.0.1", LISTEN_PORT)
    await asyncio.sleep(120)


asyncio.run(main())
