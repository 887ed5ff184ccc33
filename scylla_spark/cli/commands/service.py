"""The commands `scylla-spark service …`: units of systemd, one per role."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from scylla_spark.cli.context import context
from scylla_spark.errors import ArgumentError
from scylla_spark.processes.roles import ROLES

if TYPE_CHECKING:
    from scylla_spark.config.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Units of systemd.")

_DOES: Final = {
    "ingest": "writes the tables",
    "dispatch": "starts tasks",
    "plan": "plans schedules",
    "api": "serves the HTTP API and the dashboard",
}
_SPARK_STOP_S: Final = 20  # that Spark may take to stop
_UNIT: Final = """\
# Written by `scylla-spark service install`. Put changes into a drop-in: systemctl edit scylla-spark-{role}
[Unit]
Description=scylla-spark {role}: {does}
Wants=network-online.target time-sync.target
After=network-online.target time-sync.target

[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
User={user}
StateDirectory=scylla-spark
StateDirectoryMode=0700
CacheDirectory=scylla-spark
WorkingDirectory=%S/scylla-spark
Environment=XDG_CACHE_HOME=%C/scylla-spark
{credentials}# a start with Spark takes its time; a dispatcher without partitions counts as started after two minutes
TimeoutStartSec=300
# the main process alone is signalled, drains, and ends the others
KillMode=mixed
TimeoutStopSec={stop_s}
Restart=on-failure
RestartSec=2
RestartPreventExitStatus=2 7
UMask=0077
LimitNOFILE=65536

NoNewPrivileges=yes
CapabilityBoundingSet=
PrivateTmp=yes
PrivateDevices=yes
DevicePolicy=closed
ProtectSystem=strict
ProtectHome=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
RemoveIPC=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
{namespaces}RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service{calls}
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""
_SANDBOXES: Final = (
    "# bubblewrap makes the sandboxes of handlers from namespaces\nRestrictNamespaces=user mnt pid net ipc uts\n"
)


@app.command("install")
def install(
    ctx: typer.Context,
    roles: Annotated[list[str] | None, typer.Argument(help=f"{', '.join(ROLES)}; default: all")] = None,
    to: Annotated[Path, typer.Option(help="Folder for the units")] = Path("/etc/systemd/system"),
    config: Annotated[Path, typer.Option(help="Settings file of the services")] = Path(
        "/etc/scylla-spark/scyllaspark.toml"
    ),
    user: Annotated[str, typer.Option(help="Who they run as")] = "scylla-spark",
    program: Annotated[
        Path | None, typer.Option(help="The command scylla-spark that they run; default: the one that runs now")
    ] = None,
    credential: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SETTING=FILE",
            help="A setting that names a secret file, such as kafka.password_file=/etc/…; systemd reads it as root; repeatable",
        ),
    ] = None,
) -> None:
    """Write one unit of systemd per role; nothing is started."""
    cli = context(ctx)
    if unknown := set(roles or ()) - set(ROLES):
        raise ArgumentError(f"There is no role {sorted(unknown)}.", hint=f"Roles: {', '.join(ROLES)}.")
    if not to.is_dir():
        raise ArgumentError(f"--to {to} is no folder.", hint="Name the folder of systemd's units.")
    secrets, settings = _pairs(credential or ()), cli.settings()
    own = program or Path(sys.argv[0]).absolute()
    rows = []
    for role in roles or ROLES:
        file = to / f"scylla-spark-{role}.service"
        file.write_text(unit(role, settings, program=own, config=config, user=user, secrets=secrets), encoding="utf-8")
        rows.append({"role": role, "unit": str(file)})
    cli.output.rows(rows, ("role", "unit"))
    names = " ".join(f"scylla-spark-{row['role']}" for row in rows)
    cli.output.say(f"Next: systemctl daemon-reload && systemctl enable --now {names}")


def unit(role: str, settings: Settings, *, program: Path, config: Path, user: str, secrets: Mapping[str, str]) -> str:
    """The text of a role's unit.

    Args:
        role: its name.
        settings: how long a stop may take follows from them.
        program: the command scylla-spark.
        config: settings file.
        user: who the service runs as.
        secrets: setting → the file that systemd hands on as a credential.
    """
    from scylla_spark.processes.bounded_stop import LIMIT_S

    drain_s = 2 * settings.dispatch.drain.total_seconds() if role in ("ingest", "dispatch") else 0
    credentials = "".join(
        f"LoadCredential={name}:{file}\nEnvironment=SCYLLASPARK_{name.upper().replace('.', '__')}=%d/{name}\n"
        for name, file in secrets.items()
    )
    sandboxed = role == "dispatch"
    return _UNIT.format(
        role=role, does=_DOES[role], user=user, credentials=credentials,
        command=f"{program} --config {config} --set data_dir=%S/scylla-spark run {role} --log json",
        stop_s=round(LIMIT_S + _SPARK_STOP_S + drain_s) + 10,
        namespaces=_SANDBOXES if sandboxed else "RestrictNamespaces=yes\n",
        calls=" @mount" if sandboxed else "",
    )  # fmt: skip


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    found = dict[str, str]()
    for text in texts:
        name, equals, file = text.partition("=")
        if not equals or not name.endswith("_file") or not file.startswith("/"):
            raise ArgumentError(
                f"--credential {text!r} names no setting and file.",
                hint="Write a setting that ends with _file, and an absolute path: kafka.password_file=/etc/scylla-spark/kafka-password.",
            )
        found[name] = file
    return found
