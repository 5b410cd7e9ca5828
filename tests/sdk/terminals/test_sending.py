"""Two tasks send over one connection: keys, and what is due when something came. A paste over a slow network ended `cloche
shell`: keys that were typed behind it went between its pieces, and input that is not in order is refused."""

from __future__ import annotations

import asyncio

from cloche._socket import AwaitingSocket, say


class SlowConnection:
    """Takes the first message when it is told to."""

    def __init__(self) -> None:
        self.taken: list[str | bytes] = []
        self.room = asyncio.Event()

    async def send(self, message: str | bytes) -> None:
        self.taken.append(message)
        if len(self.taken) == 1:
            await self.room.wait()


async def test_what_one_task_sends_is_not_mixed_with_what_another_one_does() -> None:
    socket, connection = AwaitingSocket(), SlowConnection()
    socket._connection = connection  # type: ignore[assignment]
    paste = asyncio.create_task(socket.drive(say([b"1", b"2", b"3"])))
    key = asyncio.create_task(socket.drive(say([b"4"])))
    for _ in range(10):
        await asyncio.sleep(0)
    connection.room.set()
    await asyncio.gather(paste, key)
    assert connection.taken == [b"1", b"2", b"3", b"4"]
