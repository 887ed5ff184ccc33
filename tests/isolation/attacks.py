"""Handlers that try to get out: each attack returns what it has got hold of, or raises because it was stopped.

Every one of them succeeds outside a sandbox, in a form that harms nobody, and the suite checks that it does. So an attack that
is stopped was stopped by the sandbox. `place` says what there is to get: ports, process ids, paths, and the word `canary`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scylla_spark.core.tasks.task import Task
from scylla_spark.handlers.registry import handler

Attack = Callable[[dict[str, Any]], object]
ATTACKS: dict[str, Attack] = {}
ROOT_ONLY: set[str] = set()  # outside, only root could do it anyway
LIBC = ctypes.CDLL(None, use_errno=True)
MB = 1_000_000


def attack(function: Attack) -> Attack:
    ATTACKS[function.__name__] = function
    return function


def of_root(function: Attack) -> Attack:
    ROOT_ONLY.add(function.__name__)
    return attack(function)


@handler("attack.free", timeout="60s")
def free(task: Task) -> object:
    return ATTACKS[task.payload["attack"]](task.payload["place"])


@handler(
    "attack.boxed", isolation="sandbox", memory="200MB", cpu="1s", processes=6, open_files=64, timeout="60s",
    environment={"REGION": "eu"},
)  # fmt: skip
def boxed(task: Task) -> object:
    return ATTACKS[task.payload["attack"]](task.payload["place"])


@handler("attack.look", isolation="sandbox")
def look(task: Task) -> dict[str, Any]:
    status = Path("/proc/self/status").read_text().splitlines()
    lines = dict(line.split(":", 1) for line in status)
    return {
        "capabilities": [lines[name].strip() for name in ("CapPrm", "CapEff", "CapInh", "CapAmb", "CapBnd")],
        "no_new_privileges": lines["NoNewPrivs"].strip(),
        "filter": lines["Seccomp"].strip(),
        "interfaces": [name for _, name in socket.if_nameindex()],
        "processes": sorted(int(one.name) for one in Path("/proc").glob("[0-9]*")),
        "variables": sorted(os.environ),
        "root": sorted(one.name for one in Path("/").iterdir()),
        "user": os.getuid(),
    }


@handler("attack.stops", isolation="sandbox")
def stops(task: Task) -> None:
    """Stops the process that starts the children of its sandbox, and hangs."""
    if task.payload:
        os.kill(os.getppid(), signal.SIGSTOP)
        signal.pause()


@handler("attack.leaves", isolation="sandbox")
def leaves(task: Task) -> int:
    """Leaves a process and 40 MB of files behind, and says how many files it has found."""
    found = len(os.listdir("/tmp"))
    if os.fork() == 0:
        os.setsid()
        signal.pause()
    Path(f"/tmp/{task.key.ordering_id}").write_bytes(bytes(40 * MB))
    return found


def checked(result: int) -> int:
    """Returns what a function of the C library has returned.

    Raises:
        OSError: it has failed.
    """
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def in_a_copy(work: Callable[[], object]) -> str:
    """Does something in a process of its own, which ends then; what it could not do is an error here."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if status:
        raise PermissionError("the copy was stopped")
    return "done"


# ---- network ----


@attack
def connects_to_a_port_of_the_machine(place):
    with socket.create_connection(("127.0.0.1", place["tcp"]), timeout=5) as line:
        return line.recv(100).decode()


@attack
def sends_datagrams_to_the_machine(place):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.settimeout(3)
        line.sendto(b"?", ("127.0.0.1", place["udp"]))
        return line.recv(100).decode()


@attack
def connects_to_a_socket_file(place):
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(place["socket_file"])
        return line.recv(100).decode()


@attack
def connects_to_an_abstract_socket(place):
    with socket.socket(socket.AF_UNIX) as line:
        line.connect("\0" + place["abstract"])
        return line.recv(100).decode()


@attack
def has_another_program_connect(place):
    code = f"import socket; print(socket.create_connection(('127.0.0.1', {place['tcp']}), 5).recv(100).decode())"
    return subprocess.run([sys.executable, "-ISc", code], capture_output=True, text=True, check=True).stdout


@attack
def sees_who_listens(place):
    rows = Path("/proc/net/tcp").read_text()
    return place["canary"] if f":{place['tcp']:04X} " in rows else None


@attack
def sees_sockets_of_others(place):
    return place["canary"] if place["abstract"] in Path("/proc/net/unix").read_text() else None


@of_root
def listens_to_the_wire(place):
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)):
        return place["canary"]


@of_root
def speaks_raw(place):
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP):
        return place["canary"]


# ---- files ----


def reads(name: str) -> Attack:
    def read(place):
        return Path(place[name]).read_text()

    read.__name__ = f"reads_{name}"
    return read


for kind in ("secret_of_the_broker", "settings", "key_at_home", "file_in_tmp", "table"):
    attack(reads(kind))


@of_root
def reads_passwords_of_the_system(place):
    return place["canary"] + Path("/etc/shadow").read_text()[:0]


@attack
def lists_the_data_folder(place):
    return place["canary"] if os.listdir(place["data_dir"]) else None


@attack
def lists_home(place):
    return place["canary"] if os.listdir(place["home"]) else None


@attack
def reads_by_the_root_of_another_process(place):
    return Path(f"/proc/{place['victim']}/root{place['file_in_tmp']}").read_text()


@attack
def reads_by_the_root_of_its_parent(place):
    return Path(f"/proc/{os.getppid()}/root{place['file_in_tmp']}").read_text()


@attack
def reads_by_a_link(place):
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder) / "link"
        link.symlink_to(place["file_in_tmp"])
        return link.read_text()


@attack
def reads_by_a_hard_link(place):
    link = Path(place["file_in_tmp"] + ".link")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.hardlink_to(place["file_in_tmp"])
    try:
        return link.read_text()
    finally:
        link.unlink()


@attack
def has_another_program_read(place):
    return subprocess.run(["cat", place["file_in_tmp"]], capture_output=True, text=True, check=True).stdout


@attack
def opens_its_own_module_to_write(place):
    with Path(__file__).open("a"):
        return place["canary"]


@attack
def changes_the_rights_of_its_module(place):
    path = Path(__file__)
    path.chmod(stat.S_IMODE(path.stat().st_mode))
    return place["canary"]


@attack
def writes_beside_its_module(place):
    return _writes(Path(__file__).parent, place)


@attack
def writes_into_python(place):
    return _writes(Path(sys.prefix), place)


@of_root
def writes_into_the_system(place):
    return _writes(Path("/usr"), place)


@of_root
def writes_into_etc(place):
    return _writes(Path("/etc"), place)


@of_root
def writes_into_the_root_folder(place):
    return _writes(Path("/"), place)


@of_root
def makes_a_device(place):
    path = Path(tempfile.gettempdir()) / place["canary"]
    os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(254, 0))
    path.unlink()
    return place["canary"]


def _writes(folder: Path, place: dict[str, Any]) -> str:
    path = folder / f"{place['canary']}.txt"
    path.write_text("was here")
    path.unlink()
    return place["canary"]


# ---- processes and signals ----


@attack
def signals_another_process(place):
    os.kill(place["victim"], 0)
    return place["canary"]


@attack
def signals_another_group(place):
    os.killpg(place["victim"], 0)
    return place["canary"]


@attack
def holds_another_process(place):
    os.close(os.pidfd_open(place["victim"]))
    return place["canary"]


@attack
def finds_another_process(place):
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        if place["canary"].encode() in entry.read_bytes():
            return place["canary"]
    return None


@attack
def reads_variables_of_another_process(place):
    return Path(f"/proc/{place['victim']}/environ").read_text()


@attack
def reads_variables_of_its_parent(place):
    return Path(f"/proc/{os.getppid()}/environ").read_text()


@attack
def opens_the_memory_of_its_parent(place):
    with Path(f"/proc/{os.getppid()}/mem").open("r+b"):
        return place["canary"]


@attack
def opens_the_memory_of_another_process(place):
    with Path(f"/proc/{place['victim']}/mem").open("r+b"):
        return place["canary"]


@attack
def traces_its_parent(place):
    pid = os.getppid()
    return in_a_copy(lambda: checked(LIBC.ptrace(0x4206, pid, 0, 0))) and place["canary"]  # PTRACE_SEIZE stops nobody


@attack
def reads_descriptors_of_its_parent(place):
    return place["canary"] if os.listdir(f"/proc/{os.getppid()}/fd") else None


@attack
def takes_a_descriptor_of_its_parent(place):
    pidfd = os.pidfd_open(os.getppid())
    try:
        os.close(checked(LIBC.syscall(438, pidfd, 0, 0)))
    finally:
        os.close(pidfd)
    return place["canary"]


@attack
def sets_limits_of_another_process(place):
    resource.prlimit(place["victim"], resource.RLIMIT_CORE)
    return place["canary"]


@of_root
def raises_its_priority(place):
    return in_a_copy(lambda: os.setpriority(os.PRIO_PROCESS, 0, -1)) and place["canary"]


# ---- the kernel ----


@of_root
def becomes_root(place):
    return in_a_copy(lambda: os.setuid(0)) and place["canary"]


@attack
def makes_a_namespace_of_users(place):
    return in_a_copy(lambda: checked(LIBC.unshare(0x10000000))) and place["canary"]


@of_root
def makes_a_namespace_of_mounts(place):
    return in_a_copy(lambda: checked(LIBC.unshare(0x00020000))) and place["canary"]


@of_root
def mounts_something(place):
    with tempfile.TemporaryDirectory() as folder:

        def mount() -> None:
            checked(LIBC.unshare(0x00020000))
            checked(LIBC.mount(b"none", b"/", None, 0x44000, None))  # private, so that nobody else sees it
            checked(LIBC.mount(b"none", folder.encode(), b"tmpfs", 0, None))

        return in_a_copy(mount) and place["canary"]


@of_root
def changes_its_root(place):
    return in_a_copy(lambda: os.chroot("/")) and place["canary"]


@of_root
def names_the_machine(place):
    socket.sethostname(socket.gethostname())
    return place["canary"]


@of_root
def sets_the_kernel(place):
    path = Path("/proc/sys/vm/swappiness")
    path.write_text(path.read_text())
    return place["canary"]


@attack
def keeps_memory_that_nobody_counts(place):
    with open(checked(LIBC.memfd_create(b"x", 0)), "wb") as file:
        file.write(b"x")
    return place["canary"]


@attack
def keeps_a_segment_of_shared_memory(place):
    number = checked(LIBC.shmget(0, 4096, 0o1600))
    LIBC.shmctl(number, 0, None)
    return place["canary"]


@of_root
def loads_a_program_into_the_kernel(place):
    attributes = (ctypes.c_char * 128)()
    attributes[0:4] = (2).to_bytes(4, "little")  # a map of type array,
    attributes[4:16] = b"".join(n.to_bytes(4, "little") for n in (4, 4, 1))  # with one entry
    os.close(checked(LIBC.syscall(321 if os.uname().machine == "x86_64" else 280, 0, attributes, 128)))
    return place["canary"]


# ---- limits ----


@attack
def takes_memory(place):
    return place["canary"] if len(bytearray(400 * MB)) else None


@attack
def takes_memory_by_mapping(place):
    with mmap.mmap(-1, 400 * MB) as much:
        much[0] = 1
    return place["canary"]


@attack
def forks_without_end(place):
    pids: list[int] = []
    try:
        for _ in range(60):
            if (pid := os.fork()) == 0:
                signal.pause()
            pids.append(pid)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return place["canary"]


@attack
def starts_threads_without_end(place):
    over = threading.Event()
    try:
        for _ in range(60):
            threading.Thread(target=over.wait, daemon=True).start()
    finally:
        over.set()
    return place["canary"]


@attack
def fills_the_disk(place):
    return _fills(tempfile.gettempdir(), place)


@attack
def fills_shared_memory(place):
    return _fills("/dev/shm", place)


def _fills(folder: str, place: dict[str, Any]) -> str:
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for _ in range(100):
            file.write(bytes(MB))
        file.flush()
    return place["canary"]


@attack
def opens_files_without_end(place):
    files: list[int] = []
    try:
        files.extend(os.open("/dev/null", os.O_RDONLY) for _ in range(300))
    finally:
        for file in files:
            os.close(file)
    return place["canary"]


@attack
def takes_cpu_without_end(place):
    begun = time.process_time()
    while time.process_time() - begun < place["cpu_s"]:
        sum(range(10_000))
    return place["canary"]


# ---- secrets ----


@attack
def reads_variables_that_others_get(place):
    return os.environ["CLOUD_SECRET"]


@attack
def reads_the_login_of_the_proxy(place):
    return os.environ["HTTPS_PROXY"]


@attack
def looks_for_the_word_in_all_processes(place):
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if place["canary"].encode() in entry.read_bytes():
                return place["canary"]
        except OSError:
            continue
    return None
