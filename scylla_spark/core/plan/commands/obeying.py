"""Obeys what is asked: each record of `schedules` is carried out, or refused with the reason, and answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from scylla_spark import failpoint
from scylla_spark.core.plan.commands.answers import Answers
from scylla_spark.core.plan.commands.definitions import Steps
from scylla_spark.core.plan.commands.plan_command import PlanCommand, Refused, read_command
from scylla_spark.core.plan.state.audit_entry import AUDIT
from scylla_spark.core.plan.state.group_writer import COMMANDS, GroupWriter
from scylla_spark.core.plan.state.plan_log import Partly
from scylla_spark.core.plan.state.unwritten_changes import GroupTooLargeError, Journal
from scylla_spark.core.plan.suspect_inputs import Met
from scylla_spark.core.records import rejection_reason
from scylla_spark.core.records.bounded_text import cut
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import ConflictError, NotFoundError, SchedulerError

Stepwise = Callable[[PlanCommand, int, str], Steps]
"""Carries out a command step by step: with the command, the time, and the last step that was done before."""
AtOnce = Callable[[int, PlanCommand, int], None]
"""Carries out a command, and answers: with the offset of its record, the command and the time."""
_MOST_WORDS_BYTES: Final = 8_192
_KEPT_VALUE_CHARS: Final = 16 * 1024


class Obeying:
    """Carries out commands.

    Args:
        journal: takes refusals.
        groups: ends groups between the steps of a command.
        answers: writes answers.
        stepwise: kind of a command → what carries it out step by step.
        at_once: kind of a command → what carries it out and answers itself.
        note_defect: takes the stack of a defect that a command met.
    """

    def __init__(
        self, journal: Journal, groups: GroupWriter, answers: Answers, stepwise: Mapping[str, Stepwise],
        at_once: Mapping[str, AtOnce], note_defect: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._journal = journal
        self._groups = groups
        self._answers = answers
        self._stepwise = {**stepwise, AUDIT: self._audit}
        self._at_once = at_once
        self._note_defect = note_defect

    def obey(self, offset: int, value: bytes | None, append_us: int, now: int) -> None:
        """Takes one record of `schedules`.

        Args:
            offset: of the record.
            value: its bytes, whatever they are.
            append_us: the broker's time of it.
            now: microseconds since the epoch.
        """
        found = read_command(value)
        if isinstance(found, Refused):
            self._refuse_noted(offset, append_us, value, found)
            return
        if self._answers.is_repeated(found.id):
            return
        try:
            self._carry_out(offset, found, now)
        except SchedulerError as error:
            code = _code(error)
            if found.id is not None:
                message, hint = cut(error.message, _MOST_WORDS_BYTES), cut(error.hint or "", _MOST_WORDS_BYTES)
                self._answers.answer(found.id, code, message, hint)
            if code == "argument":
                self._refuse(offset, append_us, value, Refused("wrong_value", error.message))
        except MemoryError:
            raise
        except GroupTooLargeError as error:
            refused = Refused("too_large", f"It cannot be done: {error}.", found.id)
            self._refuse(
                offset, append_us, value, refused, "What was done of it before that stands; ask for less at once."
            )
        except Exception as error:  # a defect of ours that this command meets must not stop all others
            self._refuse_noted(offset, append_us, value, Refused(*rejection_reason.of_defect(error), found.id))

    def refuse_in_doubt(self, offset: int, value: bytes | None, append_us: int, met: Met) -> None:
        """Refuses a record that has brought the state of the planner before us in doubt. See `obey`.

        Args:
            offset: of the record.
            value: its bytes.
            append_us: the broker's time of it.
            met: the doubt.
        """
        refused, resume = Refused(rejection_reason.DEFECT, met.stack, read_command(value).id), self._groups.resume
        is_begun = resume is not None and resume[:2] == (COMMANDS, offset)
        hint = "What was done of it before that stands." if is_begun else "Nothing was changed."
        self._refuse(offset, append_us, value, refused, hint)

    def _carry_out(self, offset: int, command: PlanCommand, now: int) -> None:
        failpoint.reach("plan.command")
        steps = self._stepwise.get(command.type)
        if steps is None:
            self._at_once[command.type](offset, command, now)
            return
        resume = self._groups.resume
        last = resume.name if resume is not None and resume[:2] == (COMMANDS, offset) else ""
        done, taken_back = self._step_by_step(Partly(COMMANDS, offset, 0, ""), steps(command, now, last), now)
        self._answers.done_when_ended(command.id, set(taken_back), done, now)

    def _step_by_step(self, at: Partly, steps: Steps, now: int) -> tuple[dict[str, Any], list[TaskKey]]:
        while True:
            try:
                name = next(steps)
            except StopIteration as end:
                result: tuple[dict[str, Any], list[TaskKey]] = end.value
                return result
            self._groups.part(at._replace(name=name), now)

    def _audit(self, command: PlanCommand, now: int, last: str) -> Steps:
        """Passes on who asked for what, one after the other."""
        for number, entry in enumerate(command.fields["entries"]):
            place = f"{number:05}"
            if place > last:
                self._journal.note(AUDIT, entry["atUs"], entry)
                yield place
        return {}, []

    def _refuse_noted(self, offset: int, append_us: int, value: bytes | None, found: Refused) -> None:
        """Refuses a record, and reports it as a defect if our own code failed."""
        if found.reason == rejection_reason.DEFECT:
            self._note_defect(found.detail)
        self._refuse(offset, append_us, value, found)

    def _refuse(
        self, offset: int, append_us: int, value: bytes | None, found: Refused, hint: str = "Nothing was changed."
    ) -> None:
        text = (value or b"")[:_KEPT_VALUE_CHARS].decode("utf-8", "replace")
        detail = cut(found.detail, _MOST_WORDS_BYTES)
        self._journal.conclude("refuse", offset, append_us, found.reason, detail, text, len(value or b""))
        if found.id is not None:
            self._answers.answer(found.id, "rejected", rejection_reason.for_the_sender(found.reason, detail), hint)


def _code(error: SchedulerError) -> str:
    if isinstance(error, NotFoundError):
        return "not_found"
    return "conflict" if isinstance(error, ConflictError) else "argument"
