"""A TCP port for a job of this test alone, as held_port.h has it."""
import socket

_HELD = []


def held_port():
    """A port of 127.0.0.1 that the system gives to nobody who does not ask for it
    by number, while this process lives: a socket stays bound to it. Whoever sets
    SO_REUSEADDR, as stores do, can listen on it."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    _HELD.append(held)
    return held.getsockname()[1]
