#!/usr/bin/env python
"""Start a Python server again and again without paying for its imports each time.

    VENV/bin/python warm.py serve SOCKET CODE MODULE...  # runs the code, imports the modules, forks for each client
    python warm.py run SOCKET SCRIPT [ARGUMENT...]       # runs SCRIPT in a fork, with its output and exit code

A start of vLLM imports for 20 to 60 s before it reads its options. The fork reads options and environment as a new process
does, except for variables that modules read when they are imported.
"""

import array
import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
import types


def serve(path, modules):
    """Import the modules and fork for each client until the socket is closed or we are ended."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    before, *modules = modules
    exec(before, {})  # noqa: S102 - given by the script that starts us
    for name in modules:
        with contextlib.suppress(Exception):  # a module that this version lacks
            importlib.import_module(name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path + ".new")
        listener.listen()
        os.rename(path + ".new", path)  # clients see the socket once it is ready
        while True:
            connection, _ = listener.accept()
            with connection:
                attend(connection, listener)


def attend(connection, listener):
    """Fork for one client; tell it the exit status; kill the fork's processes if the client is gone."""
    message, controls, *_ = connection.recvmsg(1 << 20, socket.CMSG_SPACE(8))
    outputs = array.array("i")
    for _, _, data in controls:
        outputs.frombytes(data[: len(data) - len(data) % outputs.itemsize])
    order = json.loads(message)
    pid = os.fork()
    if pid == 0:
        listener.close()
        connection.close()
        child(order, outputs)
    for fd in outputs:
        os.close(fd)
    ended = os.pidfd_open(pid)
    try:
        ready, _, _ = select.select([ended, connection], [], [])
    except SystemExit:
        os.killpg(pid, signal.SIGKILL)
        raise
    if ended not in ready:  # the client hung up, perhaps before the fork leads its group
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(ended)
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(status).encode())
    with contextlib.suppress(ProcessLookupError):  # its workers
        os.killpg(pid, signal.SIGKILL)


def child(order, outputs):
    """Become the server: run the script as `python SCRIPT` would."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.dup2(outputs[0], 1)
    os.dup2(outputs[1], 2)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    script, *_ = sys.argv = order["argv"]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = script
    code = 0
    try:
        with open(script) as f:
            program = compile(f.read(), script, "exec")
        exec(program, vars(main))  # noqa: S102
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
        if isinstance(e.code, str):
            print(e.code, file=sys.stderr)
    except BaseException as e:  # noqa: BLE001 - as Python ends with an exception
        e.__traceback__ = e.__traceback__.tb_next  # without the frame of this function
        sys.excepthook(type(e), e, e.__traceback__)
        code = 1
    import multiprocessing.util
    import threading

    with contextlib.suppress(BaseException):
        threading._shutdown()
        multiprocessing.util._exit_function()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(path, argv):
    """Run the script in a fork and end as it ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.connect(path)
        order = json.dumps({"argv": argv, "env": dict(os.environ), "cwd": os.getcwd()}).encode()
        s.sendmsg([order], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [1, 2]))])
        status = json.loads(s.recv(64) or "9")
    if os.WIFSIGNALED(status):
        with contextlib.suppress(OSError):  # SIGKILL has no handler to reset
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], sys.argv[3:])
    else:
        run(sys.argv[2], sys.argv[3:])
