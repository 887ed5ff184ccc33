"""Runs leased tasks in containers: each in one of its own, made by podman, without network, rights, or anything of this machine.

Unlike the rest of `worker` it needs a package: pydantic reads the payloads, because strangers write them.
"""
