"""Proof of who enqueued a task: what the API signs for the token of a request, and no other program can sign.

A program that may write to the topic can claim any name. The signature covers what the task does, so a record that was changed, or that
has another key, no longer has a proof.
"""

from __future__ import annotations

import hmac
import json

from scylla_spark.core.records.command import ENQUEUE, Command
from scylla_spark.core.tasks.about import NOTHING_SAID

_CHARS = 32  # of hexadecimal digits: 128 bits


def signed(command: Command, by: str, secret: str, default_handler: str | None) -> Command:
    """The same task, enqueued by somebody, with the proof of it. Other commands stay as they are.

    Args:
        command: is about to be sent.
        by: name of the token of the request.
        secret: that the services of the deployment share.
        default_handler: runs tasks whose records name no handler.
    """
    if command.kind != ENQUEUE:
        return command
    about = (command.about or NOTHING_SAID)._replace(enqueued_by=by, proof=None)
    proof = _proof(command._replace(about=about, handler=command.handler or default_handler), secret)
    return command._replace(about=about._replace(proof=proof))


def is_proven(command: Command, secret: str | None) -> bool:
    """Returns True if the API signed who enqueued a task, as its record is stored.

    Args:
        command: as it was read.
        secret: that the services of the deployment share; None: it is not known here, so nothing is proven.
    """
    about = command.about
    if about is None or about.proof is None or about.enqueued_by is None or secret is None:
        return False
    return hmac.compare_digest(about.proof, _proof(command, secret))


def _proof(command: Command, secret: str) -> str:
    about = command.about or NOTHING_SAID
    said = (*about[:3], str(command.key), command.handler, command.queue, command.payload)
    text = json.dumps(("enqueued by", *said)).encode()
    return hmac.new(secret.encode(), text, "sha256").hexdigest()[:_CHARS]
