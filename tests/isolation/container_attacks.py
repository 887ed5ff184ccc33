"""Programs of a shell that try to get out of a container: each prints what it has got hold of, or `won`, or is stopped.

Every one of them succeeds outside, in a form that harms nobody, and the suite checks that it does, with the same busybox that is the
image. What there is to get stands in variables: `$PORT`, `$VICTIM` (a process), `$BASE` (a folder with `$BASE/notes.txt` and more),
`$HOST` (an address of this machine).
"""

from __future__ import annotations

import shlex
from typing import Final

NETWORK: Final = {
    "connects_to_a_port_of_the_machine": "busybox nc -w 2 127.0.0.1 $PORT </dev/null",
    "connects_to_an_address_of_the_machine": "busybox nc -w 2 $HOST $PORT </dev/null",
    "has_another_program_connect": "busybox env busybox nc -w 2 127.0.0.1 $PORT </dev/null",
    "sees_who_listens": "busybox grep -qi :$(printf %04X $PORT) /proc/net/tcp && won",
    "sees_sockets_of_others": "busybox grep -q $ABSTRACT /proc/net/unix && won",
    "sees_the_neighbours_of_the_machine_by_its_victim": "busybox grep -qi :$(printf %04X $PORT) /proc/$VICTIM/net/tcp && won",
}
FILES: Final = {
    "reads_the_secret_of_the_broker": "cat $BASE/data/broker/secret",
    "reads_a_table": "cat $BASE/data/tables/part-0.parquet",
    "reads_the_settings": "cat $BASE/scyllaspark.toml",
    "reads_a_key_at_home": "cat $BASE/home/.ssh/id_ed25519",
    "reads_a_file_in_tmp": "cat $BASE/notes.txt",
    "reads_by_a_way_up": "cd /proc/self && cat ../../../../../../$BASE/notes.txt",
    "reads_by_a_link": "ln -s $BASE/notes.txt $OWN/link; cat $OWN/link",
    "reads_by_a_hard_link": "ln $BASE/notes.txt $BASE/hard && cat $BASE/hard; rm $BASE/hard",
    "reads_by_the_root_of_its_own": "cat /proc/self/root$BASE/notes.txt",
    "reads_by_the_root_of_its_parent": "cat /proc/$PPID/root$BASE/notes.txt",
    "reads_by_the_root_of_another_process": "cat /proc/$VICTIM/root$BASE/notes.txt",
    "reads_by_the_folder_of_another_process": "cat /proc/$VICTIM/cwd/notes.txt",
    "reads_what_another_process_has_open": "cat /proc/$VICTIM/fd/0",
    "copies_a_file_to_itself": "cp $BASE/notes.txt $OWN/copy && cat $OWN/copy",
    "lists_the_data_folder": "ls $BASE/data/broker && won",
    "lists_a_home": "ls $BASE/home/.ssh && won",
    "looks_for_the_word_in_all_files_of_a_folder": "busybox grep -r canary $BASE",
    "writes_into_a_file_of_the_machine": "echo >> $BASE/data/tables/part-0.parquet && won",
    "makes_a_file_on_the_machine": "touch $BASE/made && won",
    "removes_a_file_of_the_machine": "cp $BASE/notes.txt $BASE/gone && rm $BASE/gone && won",
    "renames_a_file_of_the_machine": "mv $BASE/scyllaspark.toml $BASE/moved && mv $BASE/moved $BASE/scyllaspark.toml && won",
    "changes_the_rights_of_a_file": "busybox chmod 644 $BASE/notes.txt && won",
}
PROCESSES: Final = {
    "signals_another_process": "kill -0 $VICTIM && won",
    "signals_another_group": "kill -0 -$VICTIM && won",
    "stops_another_process": "kill -STOP $VICTIM && kill -CONT $VICTIM && won",
    "finds_another_process": "cat /proc/[0-9]*/cmdline | busybox tr '\\000' '\\n'",
    "lists_another_process": "busybox ps -o args | busybox grep [c]anary",
    "reads_variables_of_another_process": "busybox tr '\\000' '\\n' < /proc/$VICTIM/environ",
    "looks_for_the_word_in_all_processes": "cat /proc/[0-9]*/environ 2>/dev/null | busybox tr '\\000' '\\n'",
    "opens_the_memory_of_another_process": ": 3<>/proc/$VICTIM/mem && won",
    "sees_what_another_process_has_mapped": 'test -n "$(cat /proc/$VICTIM/maps)" && won',
    "lists_descriptors_of_another_process": "ls /proc/$VICTIM/fd/0 && won",
    "reads_limits_of_another_process": "cat /proc/$VICTIM/limits && won",
    "changes_who_dies_first_of_memory": "cd /proc/$VICTIM && score=$(cat oom_score_adj) && echo $score > oom_score_adj && won",
    "reads_variables_that_others_get": "echo $CLOUD_SECRET",
    "reads_the_login_of_the_proxy": "echo $HTTPS_PROXY",
}
OF_ROOT: Final = {
    "becomes_root": "test $(busybox id -u) = 0 && won",
    "reads_passwords_of_the_system": "busybox grep -q ^root: /proc/self/root/etc/shadow && won",
    "enters_another_process": "busybox nsenter -t $VICTIM -m cat $BASE/notes.txt",
    "makes_a_namespace_of_mounts": "busybox unshare -m busybox true && won",
    "makes_a_namespace_of_networks": "busybox unshare -n busybox true && won",
    "mounts_something": "busybox unshare -m sh -c 'busybox mount -t tmpfs none /tmp' && won",
    "changes_its_root": "busybox chroot / /bin/busybox true && won",
    "makes_a_device": "busybox mknod $OWN/device b 254 0 && won",
    "names_the_machine": "busybox hostname $(busybox hostname) && won",
    "sets_the_kernel": "cd /proc/sys/vm && old=$(cat swappiness) && echo $old > swappiness && won",
    "gives_a_file_away": "touch $OWN/mine && busybox chown 1 $OWN/mine && won",
    "writes_into_etc": "touch /etc/$NAME && rm /etc/$NAME && won",
    "writes_among_programs": "touch /bin/$NAME && rm /bin/$NAME && won",
    "writes_into_the_root_folder": "touch /$NAME && rm /$NAME && won",
    "writes_among_devices": "mkdir /dev/$NAME && rmdir /dev/$NAME && won",
}
"""What outside only root could do anyway."""

ATTACKS: Final = NETWORK | FILES | PROCESSES | OF_ROOT
_PROGRAMS: Final = ("cat", "cp", "ln", "ls", "mkdir", "mv", "rm", "rmdir", "touch")
WON: Final = "got-" + "out"
"""What an attack prints that has won; no program has it on its command line."""


def script(names: list[str]) -> str:
    """A program that tries one after the other; before what each prints stands a line with its name.

    Args:
        names: of the attacks.
    """
    preface = 'won() { echo "got-""out"; }\n' + "".join(f'{name}() {{ busybox {name} "$@"; }}\n' for name in _PROGRAMS)
    parts = [f"echo {_head(name)}\nsh -c {shlex.quote(preface + ATTACKS[name])} 2>&1 </dev/null" for name in names]
    return "\n".join([*parts, f"echo {_head('end')}"])


def told(lines: list[str]) -> dict[str, list[str]]:
    """Name → what the attack printed.

    Args:
        lines: that the program printed.
    """
    found: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith("== ") and line.endswith(" =="):
            found[line[3:-3]] = []
        elif found:
            next(reversed(found.values())).append(line)
    return found


def _head(name: str) -> str:
    return f"'== {name} =='"
