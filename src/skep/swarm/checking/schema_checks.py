"""Values held against schemas without ever stopping the runner: simple ones here, the others in a child process."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from skep.errors import SkepError
from skep.swarm.checking.schemas import may_be_slow, value_faults

TOO_LONG = "the check of the schema took too long: a `pattern` in it may be one that never ends on this answer"
COMPUTE_S = 2.0
PATIENCE_S = 30.0  # of the wall clock, on a busy machine; the child's own computing is bounded far closer
LONGEST_HERE = 20_000  # characters of JSON that are checked in this process
_TRIES = 2  # a child that was lost for another reason is started once more
_LIMIT = 1 << 20  # of a line that it answers


class SchemaChecks:
    """One check at a time in the child, which is started by the first that needs it."""

    def __init__(self, compute_s: float = COMPUTE_S) -> None:
        self._compute_s = compute_s
        self._child: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()  # a question and its answer belong together
        self._slow: dict[int, tuple[Mapping[str, Any], bool]] = {}  # by identity; the schema is kept so that it lives

    async def fault(self, schema: Mapping[str, Any], value: Any) -> str | None:
        """Where the value is not as the schema says, in one line; None: it is."""
        document = json.dumps(value)
        if len(document) <= LONGEST_HERE and not self._is_slow(schema):
            return value_faults(schema, value)
        line = f'{{"schema": {json.dumps(schema)}, "value": {document}}}\n'.encode()
        async with self._turn:
            return await self._asked(line)

    async def close(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        with suppress(ProcessLookupError):
            child.kill()
        await asyncio.shield(child.wait())

    def _is_slow(self, schema: Mapping[str, Any]) -> bool:
        known = self._slow.get(id(schema))
        if known is None:
            known = self._slow[id(schema)] = (schema, may_be_slow(schema))
        return known[1]

    async def _asked(self, line: bytes) -> str | None:
        for _ in range(_TRIES):
            child = await self._started()
            assert child.stdin is not None
            assert child.stdout is not None
            try:
                async with asyncio.timeout(PATIENCE_S):
                    child.stdin.write(line)
                    await child.stdin.drain()
                    answer = await child.stdout.readline()
                if answer.endswith(b"\n"):
                    fault: str | None = json.loads(answer)["fault"]
                    return fault
                if await self._ended(child) == -signal.SIGPROF:
                    return TOO_LONG
            except TimeoutError:
                await self.close()
                return TOO_LONG
            except (BrokenPipeError, ConnectionResetError):
                await self.close()
            except asyncio.CancelledError:
                await self.close()  # its answer would be taken for that to the next question
                raise
        raise SkepError("the process that checks schemas does not stay alive", hint="is there memory left?")

    async def _ended(self, child: asyncio.subprocess.Process) -> int:
        code = await child.wait()
        self._child = None
        return code

    async def _started(self) -> asyncio.subprocess.Process:
        """In a session of its own, so that Ctrl-C is the runner's alone; it ends with its input.

        `-P`: the user's folder, which may hold anything, is no place to import from.
        """
        if self._child is None:
            self._child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "skep.swarm.checking.schema_worker", str(self._compute_s)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                limit=_LIMIT,
            )
        return self._child
