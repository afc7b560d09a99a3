"""A process of FLARE that ends when the process that started it ends, even by `kill -9`.

``python -m coterie.deploy.flare.child_process PARENT HOW MODULE ARG...`` runs a module of FLARE in this process. PARENT is the number of
the starting process. HOW is ``signal`` where the kernel may deliver the parent's death as a signal, and ``watch`` where it may not: Linux
sends that signal when the starting *thread* ends, and FLARE starts its jobs from threads that come and go.
"""

import ctypes
import os
import runpy
import shlex
import signal
import sys
import threading
from time import sleep
from typing import Any

MODULE = "coterie.deploy.flare.child_process"
SIGNAL, WATCH = "signal", "watch"
LOOK = 0.5  # seconds between looks at the parent
PR_SET_PDEATHSIG = 1  # linux/prctl.h
STARTS_JOBS = ("nvflare.private.fed.app.server.server_train", "nvflare.private.fed.app.client.client_train")
JOBS = ("nvflare.private.fed.app.server.runner_process", "nvflare.private.fed.app.client.worker_process")


def child_command(python: list[str], module: str, how: str | None = None) -> list[str]:
    """The start of a command line that runs a module as a child of this process.

    `how` is by default SIGNAL from the main thread, which lives as long as the process, and WATCH from any other.
    """
    lasting = threading.current_thread() is threading.main_thread()
    return [*python, "-m", MODULE, str(os.getpid()), how or (SIGNAL if lasting else WATCH), module]


def end_with_parent(parent: int, how: str) -> None:
    """From now on, end this process and its process group as soon as its parent is another one than `parent`."""
    if how == SIGNAL and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before the signal was asked for
        _kill_group()
    threading.Thread(target=_watch_parent, args=(parent,), name="parent-watch", daemon=True).start()


def _watch_parent(parent: int) -> None:
    """An orphan gets another parent: unlike a look at the process table, this cannot be fooled by a number that is used again."""
    while os.getppid() == parent:
        sleep(LOOK)
    _kill_group()


def _kill_group() -> None:
    if os.getpgrp() == os.getpid():  # FLARE's processes lead a group each; what they started and did not detach is in it
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _guard_jobs() -> None:
    """Have FLARE start its job processes as children in the same sense. Their starting threads end early, so they watch.

    FLARE writes a job's command as one text and splits it at spaces: paths are quoted here, so that they may have some.
    """
    from nvflare.apis.job_launcher_spec import JobProcessArgs
    from nvflare.app_common.job_launcher import process_launcher
    from nvflare.utils import job_launcher_utils

    spawn, write = process_launcher.spawn_process, job_launcher_utils._job_args_str
    paths = (JobProcessArgs.WORKSPACE, JobProcessArgs.STARTUP_DIR, JobProcessArgs.APP_ROOT)

    def spawn_guarded(words: list[str], environment: dict[str, str]) -> Any:
        place = words.index("-m")
        return spawn([*child_command([sys.executable], words[place + 1], WATCH), *words[place + 2 :]], environment)

    def write_quoted(options: dict[str, tuple[str, str]], names: list[str]) -> Any:
        quoted = {name: (options[name][0], shlex.quote(options[name][1])) for name in paths if name in options}
        return write({**options, **quoted}, names)

    process_launcher.spawn_process = spawn_guarded
    job_launcher_utils._job_args_str = write_quoted


def main() -> None:
    """Run the module that the command line names."""
    parent, how, module = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    end_with_parent(parent, how)
    if module in (*STARTS_JOBS, *JOBS):
        from coterie.deploy.flare.protection import protect

        protect()
    if module in STARTS_JOBS:
        _guard_jobs()
    sys.argv = [module, *sys.argv[4:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
