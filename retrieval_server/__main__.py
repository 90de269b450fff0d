"""Serve retrieval: `python -m retrieval_server --tasks DIR --web FILE --host 127.0.0.1 --port 8700`."""

import asyncio
import logging
import socket
import sys

from retrieval_server.arguments import Arguments, parse_arguments, printable
from retrieval_server.board import Board
from retrieval_server.manifest import Manifest
from retrieval_server.serve import serve
from retrieval_server.status import FAILED, REFUSED, exit_status
from retrieval_server.workers import Group, ServerEnded, ServerRefused, listeners


async def _run(arguments: Arguments, argv: list[str]) -> None:
    """As one of several processes, as their parent, or alone."""
    if arguments.worker is not None:
        number, listener, shared, parent = arguments.worker
        inherited = socket.socket(fileno=listener)
        await serve(arguments, inherited, Board(arguments.workers, shared), number, parent)
        return
    sockets = listeners(arguments.host, arguments.port, arguments.workers)
    if arguments.workers > 1 or (arguments.index is not None and not arguments.index.exists()):
        await Group(arguments, argv, sockets).run()
        return
    board = Board(1)
    if arguments.index is not None:
        Manifest.read(arguments.index)  # refused before anybody waits; loading checks the rest
    board.index_ready = True
    await serve(arguments, sockets[0], board)


def main(argv: list[str]) -> int:
    """Serve until a signal; the exit status, with one last line on stderr when it is not 0 (`status.py`)."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        arguments = parse_arguments(argv)
        asyncio.run(_run(arguments, argv))
    except ServerRefused:
        return REFUSED
    except ServerEnded as error:
        print(printable(f"retrieval_server: {error}"), file=sys.stderr)
        return FAILED
    except (OSError, ValueError) as error:
        print(printable(f"retrieval_server: {error}"), file=sys.stderr)
        return exit_status(error)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
