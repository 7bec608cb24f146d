"""A ``vq`` of a shell that the test process's server forks (``support.command_server``).

    python -IS forked_command.py FD topic list      FD: the server's socket, inherited

It has the shell's streams, directory, environment and process group. A signal to this process goes
to the command; how the command ends is how this process ends. It leaves the group itself: a signal
to the group would come to the command twice.
"""

import json
import os
import signal
import socket
import sys
from types import FrameType

_PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def main() -> None:
    """Have the command run, and end as it does."""
    _, control, *arguments = sys.argv
    try:
        server = socket.socket(fileno=int(control))
        asks = server.type == socket.SOCK_SEQPACKET
    except OSError:
        asks = False
    if not asks:  # a program in between has closed what it inherited
        os.execv(sys.executable, [sys.executable, "-m", "vq.cli.main", *arguments])
    reply, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    told = [os.getcwd(), arguments, dict(os.environ), os.getpgrp()]
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    with theirs, server:
        socket.send_fds(server, [json.dumps(told).encode()], [theirs.fileno(), 0, 1, 2])
    _, (pidfd,), _, _ = socket.recv_fds(reply, 32, 1)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        try:
            signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            pass  # it has ended

    for number in _PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    for stream in (0, 1, 2):  # a reader of a pipe is to see its end when the command ends
        os.close(stream)
    code = os.waitstatus_to_exitcode(int(reply.recv(32)))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
