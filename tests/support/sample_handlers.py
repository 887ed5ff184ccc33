"""Handlers of all characters, run by the executors' tests in child processes."""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from scylla_spark.core.tasks.task import Task, TaskContext
from scylla_spark.errors import Abort, ArgumentError, RateLimited, Yield
from scylla_spark.handlers.registry import handler
from scylla_spark.handlers.shared_resources import setup


@handler("noop")
def noop(task: Task) -> None:
    return None


@handler("echo", timeout="30s")
def echo(task: Task, ctx: TaskContext) -> dict:
    left = (ctx.deadline - task.scheduled_time).total_seconds()
    return {
        "payload": task.payload,
        "lane": task.ordering_id,
        "queue": task.queue,
        "priority": task.priority,
        "token": list(ctx.token),
        "left": left,
    }


class Order(BaseModel):
    """A payload."""

    item: str
    count: int = 1


class Receipt(BaseModel):
    """A result."""

    text: str
    attempt: int


@handler("typed")
def typed(p: Order, ctx: TaskContext) -> Receipt:
    return Receipt(text=f"{p.count} x {p.item}", attempt=ctx.attempt)


@handler("leave_files")
def leave_files(task: Task, ctx: TaskContext) -> str:
    """Leaves files behind as the payload says: a list of [name, text or {"path": …} or {"zeros": …}], or how it ends."""
    for step in task.payload:
        if isinstance(step, str):
            os._exit(3) if step == "exit" else signal.pause() if step == "hang" else None
            raise RuntimeError(step)
        name, data = step
        if isinstance(data, dict):
            data = Path(data["path"]) if "path" in data else bytes(data["zeros"])
        try:
            ctx.output(name, data)
        except (ArgumentError, OSError) as error:
            return type(error).__name__
    return "done"


@handler("go_on")
def go_on(task: Task, ctx: TaskContext) -> object:
    """Says how far it is, leaves something behind, and ends as the payload says."""
    ctx.progress(0.25)
    ctx.progress(0.5, "half\n of\u202e it\ud800")
    ctx.checkpoint({"row": 7, "text": "ü"})
    if task.payload == "exit":
        os._exit(3)
    if task.payload == "hang":
        time.sleep(300)
    if task.payload == "raise":
        raise ValueError("as asked")
    if task.payload == "threads":
        told = [threading.Thread(target=ctx.checkpoint, args=({"row": n},)) for n in range(20)]
        for thread in told:
            thread.start()
        for thread in told:
            thread.join()
    return ctx.checkpointed


@handler("last_error")
def last_error(task: Task, ctx: TaskContext) -> object:
    return None if ctx.last_error is None else [ctx.last_error.kind, ctx.last_error.message]


@setup
def shared():
    """How many calls of this process have used it; told in the folder that the last of them names, when it is torn down."""
    state = {"calls": 0, "folder": None}
    yield state
    if state["folder"]:
        (Path(state["folder"]) / str(os.getpid())).write_text(str(state["calls"]))


@handler("share")
def share(task: Task) -> list[int]:
    """Uses what its process shares; hangs where the payload says so."""
    state = shared()
    state["calls"] += 1
    state["folder"] = task.payload["folder"]
    if task.payload.get("hangs"):
        time.sleep(300)
    return [os.getpid(), state["calls"]]


@handler("asks")
def asks(task: Task, ctx: TaskContext) -> None:
    """Asks for a task and an event, and ends as the payload says."""
    ctx.enqueue("noop", {"n": 1}, name="next", delay="1m", ordering_id="lane ü")
    ctx.enqueue(typed, Order(item="tea"))
    ctx.emit("stock", {"site": 3})
    if task.payload == "raise":
        raise ValueError("as asked")
    if task.payload == "large":
        for _ in range(4):
            ctx.enqueue("noop", {"a": "x" * 200_000})


@handler("extends")
def extends(task: Task, ctx: TaskContext) -> list[bool]:
    """Asks for more time than it has, then for less, and sleeps for the seconds of the payload."""
    longer = ctx.extend(task.payload + 5)
    shorter = ctx.extend("1ms")
    time.sleep(task.payload)
    return [longer > ctx.deadline, abs(longer - shorter).total_seconds() < 0.5]


@handler("asked_to_end")
def asked_to_end(task: Task, ctx: TaskContext) -> None:
    """Goes on until it is asked to end; then leaves something behind and raises."""
    Path(task.payload).touch()
    if ctx.cancelled.wait(60):
        ctx.checkpoint({"ended": True})
        raise RuntimeError("asked to end")


@handler("bad_notes")
def bad_notes(task: Task, ctx: TaskContext) -> list[str]:
    """Returns what it is told of notes that cannot be."""
    found = []
    progress = ((ctx.progress, 1.5), (ctx.progress, float("nan")), (ctx.progress, "x"), (partial(ctx.progress, 0.5), 7))
    checkpoints = ([1], {"a": object()}, {"a": "x" * 70_000})
    for say, what in (*progress, *((ctx.checkpoint, one) for one in checkpoints)):
        try:
            say(what)
        except ArgumentError as error:
            found.append(str(error))
    return found


@handler("versioned@1")
def versioned_1(task: Task) -> int:
    return 1


@handler("versioned@2")
def versioned_2(task: Task) -> int:
    return 2


@handler("pid")
def pid(task: Task) -> int:
    time.sleep(task.payload or 0)
    return os.getpid()


@handler("niceness")
def niceness(task: Task) -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


@handler("place")
def place(task: Task, ctx: TaskContext) -> list[str | None]:
    return [ctx.host, ctx.executor_id]


@handler("getpid")
def getpid(task: Task) -> int:
    return os.getpid()


@handler("sleep")
def sleep(task: Task) -> None:
    time.sleep(task.payload)


@handler("print")
def print_text(task: Task) -> None:
    print(task.payload)


@handler("print_and_die")
def print_and_die(task: Task) -> None:
    print(task.payload)
    os.kill(os.getpid(), signal.SIGKILL)


@handler("print_much")
def print_much(task: Task) -> str:
    line = "x" * 1023 + "\n"
    for _ in range(task.payload * 1024):
        sys.stdout.write(line)
    os.write(1, b"straight to the descriptor")
    print("the end", file=sys.stderr)
    return "printed"


@handler("raise")
def raise_named(task: Task) -> None:
    raise {
        "ValueError": ValueError,
        "KeyboardInterrupt": KeyboardInterrupt,
        "BaseException": BaseException,
        "SystemExit": SystemExit,
    }[task.payload]("as asked")


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


@handler("raise_hostile")
def raise_hostile(task: Task) -> None:
    raise Hostile


class Slow(Exception):
    def __str__(self) -> str:
        time.sleep(300)
        return "late"


@handler("raise_slow", timeout="700ms")
def raise_slow(task: Task) -> None:
    raise Slow


@handler("close_and_hang", timeout="700ms")
def close_and_hang(task: Task) -> None:
    os.closerange(0, 1000)
    time.sleep(300)


@handler("raise_huge")
def raise_huge(task: Task) -> None:
    raise ValueError("m" * 50_000_000)


@handler("recurse")
def recurse(task: Task) -> None:
    recurse(task)


@handler("abort")
def abort(task: Task) -> None:
    raise Abort("card_declined")


@handler("yield")
def yield_back(task: Task) -> None:
    raise Yield(after=timedelta(seconds=90))


@handler("rate_limited")
def rate_limited(task: Task) -> None:
    given = task.payload
    raise RateLimited(*given) if isinstance(given, list) else RateLimited(given)


@handler("return")
def return_named(task: Task) -> object:
    values = {"object": object(), "nan": {"x": float("nan")}, "large": "r" * 70_000, "surrogate": "\ud800"}
    return values[task.payload] if task.payload != "deep" else json.loads("[" * 191 + "]" * 191)


@handler("exit")
def exit_hard(task: Task) -> None:
    os._exit(task.payload)


@handler("segfault")
def segfault(task: Task) -> None:
    ctypes.string_at(0)


@handler("fork")
def fork(task: Task) -> str:
    return "copy" if os.fork() == 0 else "original"


@handler("close_all")
def close_all(task: Task) -> None:
    os.closerange(3, 1000)


@handler("close_and_open")
def close_and_open(task: Task, ctx: TaskContext) -> None:
    """Closes all descriptors, opens files in their place, goes on saying how far it is, and returns."""
    os.closerange(3, 1000)
    for number in range(30):
        os.open(Path(task.payload) / str(number), os.O_CREAT | os.O_RDWR)
    ctx.progress(0.5)
    print("said")
    time.sleep(0.1)


@handler("extends_briefly", timeout="700ms")
def extends_briefly(task: Task, ctx: TaskContext) -> list[bool]:
    """Asks for more time than its time-out gives it, for less, and for more than anybody gives; sleeps beyond its time-out."""
    longer, shorter, longest = ctx.extend("5s"), ctx.extend("1ms"), ctx.extend("9d")
    time.sleep(1.2)
    return [longer > ctx.deadline, shorter == longer, longest - ctx.deadline < timedelta(hours=1)]


@handler("hangs_briefly", timeout="700ms")
def hangs_briefly(task: Task) -> None:
    time.sleep(300)


@handler("mark_and_sleep")
def mark_and_sleep(task: Task) -> None:
    Path(task.payload).touch()
    time.sleep(0.3)


@handler("mark_pid_and_hang")
def mark_pid_and_hang(task: Task) -> None:
    with Path(task.payload).open("a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(300)


@handler("wait_for_file")
def wait_for_file(task: Task) -> int:
    """Returns its process id when the file named in the payload is there."""
    while not Path(task.payload).exists():
        time.sleep(0.01)
    return os.getpid()


@handler("kill_worker")
def kill_worker(task: Task) -> None:
    """Kills the Spark worker that it runs in once a file exists, then hangs."""
    while not Path(task.payload).exists():
        time.sleep(0.01)
    forkserver = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
    os.kill(int(forkserver[1]), signal.SIGKILL)
    time.sleep(300)


@handler("stubborn")
def stubborn(task: Task) -> None:
    """Ignores SIGTERM and hangs; tells by the file named in the payload, if any, that it has begun."""
    if task.payload:
        Path(task.payload).touch()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(0.05)


@handler("moody")
def moody(task: Task) -> None:
    """Quick, unless the payload tells it to hang."""
    if task.payload == "sleep":
        time.sleep(300)
    elif task.payload == "hold_gil":
        hold_gil(task)


@handler("hold_gil")
def hold_gil(task: Task) -> None:
    re.match(r"(a+)+$", "a" * 64 + "b")  # the regular expression engine does not let go of the GIL


@handler("family")
def family(task: Task) -> None:
    """Starts a grandchild, writes its process id into the file named by the payload, and hangs."""
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    Path(task.payload).write_text(f"{os.getpid()} {grandchild.pid}")
    time.sleep(300)


@handler("orphan")
def orphan(task: Task) -> None:
    """Starts a grandchild, writes its process id into the file named by the payload, and dies."""
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    Path(task.payload).write_text(str(grandchild.pid))
    os._exit(1)


@handler("append")
def append(task: Task) -> None:
    """Appends a line to a file, so that the order of starts can be seen."""
    with Path(task.payload["file"]).open("a") as file:
        file.write(f"{task.payload['line']}\n")


@handler("rearrange")
def rearrange(task: Task) -> list[object]:
    """Tells what it finds around it, and makes another of all that."""
    mask = os.umask(0o123)
    found = [os.getpid(), os.environ.get("TENANT"), "PATH" in os.environ, os.getcwd(), mask]
    os.environ["TENANT"] = "red"
    os.environ.pop("PATH", None)
    os.chdir("/")
    return found


@handler("leave_behind")
def leave_behind(task: Task) -> int:
    """Leaves something behind for the next task of its process, as the payload says; its process id."""
    if task.payload == "alarm":
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    elif task.payload == "limit":
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    elif task.payload == "zone":
        os.environ["TZ"] = "Asia/Tokyo"
        time.tzset()
    elif task.payload == "module":
        json.dumps = None
    elif task.payload == "thread":
        threading.Thread(target=time.sleep, args=(300,), daemon=True).start()
    return os.getpid()


@handler("find_after")
def find_after(task: Task) -> list[object]:
    """Returns what a task needs of its process: time, files, a zone, modules and no thread of others."""
    time.sleep(task.payload)
    Path(__file__).read_text()
    return [json.loads(json.dumps(time.tzname)), threading.active_count()]
