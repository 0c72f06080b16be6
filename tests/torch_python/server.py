"""A Python that has imported torch, which takes two seconds of a processor, once for all tests of a run of ctest.

    server.py FOLDER      starts it in the background, for as long as the parent of this process, ctest, is there

FOLDER/python (client.py.in) is run like any python3: what it is given runs in a fork of the server, with its own
arguments, environment, folder, files, processors and namespaces, and ends as a program of its own. It has the signals
that the client gets, ends with it, and the client ends with its status. Without a server the client is the python3 that
has torch.
"""

import atexit
import ctypes
import fcntl
import gc
import marshal
import os
import pathlib
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import warnings

CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000


class Program:
    """What a client was given: arguments as python3 takes them, a folder, an environment, and which files are open."""

    def __init__(self, words, folder, environment, files):
        self.words, self.folder, self.environment, self.files = words, folder, environment, files

    def prepare(self, client, files, path):
        """Makes this process, a fork, the one that the client stands for. `path` is sys.path without PYTHONPATH."""
        import torch
        above = max(*self.files, *files) + 1
        moved = [fcntl.fcntl(file, fcntl.F_DUPFD, above) for file in files]
        for file in files:
            os.close(file)
        for number, file in zip(self.files, moved):
            os.dup2(file, number)
            os.close(file)
        os.sched_setaffinity(0, os.sched_getaffinity(client))
        enter_namespaces_of(client)
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        if "OMP_NUM_THREADS" in self.environment:  # which is read when torch is loaded
            torch.set_num_threads(int(self.environment["OMP_NUM_THREADS"]))
        sys.stdout.reconfigure(write_through=bool(self.environment.get("PYTHONUNBUFFERED")))
        while self.words[0] in ("-u", "-W"):
            if self.words.pop(0) == "-u":
                sys.stdout.reconfigure(write_through=True)
            else:
                warnings.simplefilter(self.words.pop(0))
        first = "" if self.words[0] in ("-c", "-m") else str(pathlib.Path(self.words[0]).resolve().parent)
        sys.path[:] = [first, *filter(None, self.environment.get("PYTHONPATH", "").split(":")), *path]

    def run(self, client, files, path):
        """To its end, and that of this process, as the interpreter ends; but for its memory, which it would take a
        second to give back piece by piece."""
        code = 1
        try:
            self.prepare(client, files, path)
            self.execute()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
            if code == 1 and end.code != 1:
                print(end.code, file=sys.stderr)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def execute(self):
        if self.words[0] == "-c":
            sys.argv = ["-c", *self.words[2:]]
            exec(compile(self.words[1], "<string>", "exec"), {"__name__": "__main__"})
        elif self.words[0] == "-m":
            sys.argv = self.words[1:]
            runpy.run_module(self.words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = self.words
            runpy.run_path(self.words[0], run_name="__main__")


def enter_namespaces_of(pid):
    """Of the network and of the host's name, where the client is in others."""
    if all(os.readlink(f"/proc/{pid}/ns/{kind}") == os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "uts")):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(os.pidfd_open(pid), CLONE_NEWNET | CLONE_NEWUTS):
        raise OSError(ctypes.get_errno(), "setns")


def keep(client, path):
    """In a process for each client: starts its program, and stays until one of both has ended."""
    request, files, _, _ = socket.recv_fds(client, 1 << 20, 250)
    program = Program(*marshal.loads(request))
    pid = os.fork()
    if pid == 0:
        peer = struct.unpack("iII", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        client.close()
        os.setpgid(0, 0)
        program.run(peer, files, path)
    os.setpgid(pid, pid)  # whichever of both comes first
    tell(client, pid)
    ended = os.pidfd_open(pid)
    if ended not in select.select([ended, client], [], [])[0]:
        os.killpg(pid, signal.SIGKILL)
    tell(client, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def tell(client, number):
    try:
        client.send(str(number).encode())
    except OSError:  # it has gone
        pass


def reap(*_):
    """Those that have kept a program."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def serve(listener, until):
    own = os.environ.get("PYTHONPATH", "").split(":")
    path = [entry for entry in sys.path[1:] if entry not in own]
    signal.signal(signal.SIGCHLD, reap)
    gc.freeze()  # what is there already is not looked at in forks, and so not copied
    while True:
        ready, _, _ = select.select([listener, until], [], [])
        if until in ready:
            os._exit(0)
        client, _ = listener.accept()
        if os.fork() == 0:
            try:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listener.close()
                os.close(until)
                keep(client, path)
            finally:
                os._exit(0)
        client.close()


def start(folder):
    """In the process that ctest has started. The socket listens before the server has imported anything."""
    place = folder / "socket"
    place.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # By a short name: that of a socket has 108 characters at most.
    listener.bind(f"/proc/self/fd/{os.open(folder, os.O_PATH)}/socket")
    listener.listen(100)
    until = os.pidfd_open(os.getppid())
    subprocess.Popen([sys.executable, __file__, str(folder), str(listener.fileno()), str(until)],
                     pass_fds=(listener.fileno(), until), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                     stderr=subprocess.DEVNULL, start_new_session=True, cwd="/",
                     env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
                     | {"TORCH_CPP_LOG_LEVEL": "ERROR"})  # read once too: no program here is asked what torch warns of
    listener.close()  # with the server all that wait for it hear of its end
    check(folder / "python")


def check(python):
    ended = subprocess.run([python, "-c", "import os, sys\nprint(*sys.argv, os.environ['A'])\nsys.exit(7)", "x"],
                           env=os.environ | {"A": "a"}, capture_output=True, text=True, timeout=200, check=False)
    if (ended.stdout, ended.returncode) != ("-c x a\n", 7):
        sys.exit(f"a program that ends: {ended}")
    with subprocess.Popen([python, "-c", "import signal\nprint('waits', flush=True)\nsignal.pause()"],
                          stdout=subprocess.PIPE) as waits:
        waits.stdout.readline()
        waits.terminate()
    if waits.returncode != -signal.SIGTERM:
        sys.exit(f"a program that is terminated has ended with {waits.returncode}")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        start(pathlib.Path(sys.argv[1]))
    else:
        sys.dont_write_bytecode = False  # the modules of torch that pip has not compiled are compiled once
        import torch._dynamo  # optimizers import it
        import torch.distributed.run
        serve(socket.socket(fileno=int(sys.argv[2])), int(sys.argv[3]))
