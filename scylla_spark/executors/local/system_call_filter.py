"""Which system calls a sandbox refuses: a program for the kernel's seccomp, as bubblewrap takes it.

Refused is what reaches for other processes, for the kernel itself, for namespaces and mounts, and for memory that no limit counts.
Everything else is allowed: user code is any code, and what it may reach is decided by namespaces and limits.
"""

from __future__ import annotations

import errno
import platform
import struct
from typing import Final, NamedTuple

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_GREATER: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_ANY_BIT: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K
_ALLOW: Final = 0x7FFF0000
_KILL: Final = 0x80000000
_ERRNO: Final = 0x00050000
_NUMBER_AT, _MACHINE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_NEW_NAMESPACE: Final = 0x7E020080  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET and NEWTIME
_X32: Final = 0x40000000


class Machine(NamedTuple):
    """The numbers of one architecture.

    Attributes:
        audit: how the kernel names it.
        clone: number of `clone`.
        clone3: number of `clone3`, whose flags a filter cannot read.
        refused: numbers of calls that are refused.
        second_abi: whether numbers above `_X32` are calls in another form.
    """

    audit: int
    clone: int
    clone3: int
    refused: tuple[int, ...]
    second_abi: bool


# In this order: ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp; unshare setns mount umount2 pivot_root chroot
# open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr; add_key request_key keyctl bpf perf_event_open userfaultfd
# io_uring_setup io_uring_enter io_uring_register; init_module finit_module delete_module kexec_load kexec_file_load reboot swapon
# swapoff acct syslog quotactl; open_by_handle_at name_to_handle_at fanotify_init; memfd_create memfd_secret shmget msgget
_X86_64: Final = (
    101, 310, 311, 438, 312, 272, 308, 165, 166, 155, 161, 428, 429, 430, 431, 432, 433, 442, 248, 249, 250, 321, 298, 323,
    425, 426, 427, 175, 313, 176, 246, 320, 169, 167, 168, 163, 103, 179, 304, 303, 300, 319, 447, 29, 68,
)  # fmt: skip
_AARCH64: Final = (
    117, 270, 271, 438, 272, 97, 268, 40, 39, 41, 51, 428, 429, 430, 431, 432, 433, 442, 217, 218, 219, 280, 241, 282,
    425, 426, 427, 105, 273, 106, 104, 294, 142, 224, 225, 89, 116, 60, 265, 264, 262, 279, 447, 194, 186,
)  # fmt: skip
MACHINES: Final = {
    "x86_64": Machine(0xC000003E, 56, 435, _X86_64, second_abi=True),
    "aarch64": Machine(0xC00000B7, 220, 435, _AARCH64, second_abi=False),
}


def program(machine: str | None = None) -> bytes | None:
    """The filter as the kernel reads it; None: we do not know the numbers of this machine.

    Args:
        machine: as `uname -m` names it; default: this one.
    """
    known = MACHINES.get(machine or platform.machine())
    if known is None:
        return None
    steps = [
        (_LOAD, 0, 0, _MACHINE_AT),
        (_EQUAL, 1, 0, known.audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if known.second_abi:
        steps += [(_GREATER, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    # glibc tries clone3 first, and clone where there is none
    steps += [(_EQUAL, 0, 1, known.clone3), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    for number in known.refused:
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    steps += [
        (_EQUAL, 0, 3, known.clone),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACE),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)
