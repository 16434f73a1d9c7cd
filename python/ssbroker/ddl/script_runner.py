"""Runs the statements of a script on a target: decides conditions, follows control flow, and executes the texts of EXEC."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol

from ssbroker.ddl import statements
from ssbroker.ddl.catalog_views import object_id, possible_row
from ssbroker.ddl.errors import EncodingError, RefusalError, refusal_text
from ssbroker.ddl.expressions import (
    TEXT_MAX,
    UNDECIDED,
    Row,
    Undecided,
    Value,
    equal,
    folded,
    fragments_in_tokens,
    fragments_in_value,
    is_true,
    value,
)
from ssbroker.ddl.lexer import ScriptBatch, ScriptPosition, ScriptSource, text_batch
from ssbroker.ddl.parser import ParsedBatch, parse, statements_of
from ssbroker.ddl.script_notes import NO_ENDPOINT, NOT_ABOUT_BROKER, OTHER_ENDPOINT, NoteKind, Remark, ScriptNote
from ssbroker.ddl.skipped_statements import EVENT_NOTIFICATION_KINDS, MESSAGE_KINDS
from ssbroker.ddl.statements import ParsedStatement, SecurityStatement, Statement, Tokens, walk
from ssbroker.ddl.system_objects import SYSTEM_DATABASES
from ssbroker.exceptions import DdlError, StorageError


class ScriptTarget(Protocol):
    """The target of a script: a model of an instance, or a running instance."""

    @property
    def current(self) -> str | None:
        """The database that USE selected."""

    def run(self, statement: Statement, annotations: Mapping[str, str], position: ScriptPosition) -> Remark | None:
        """Runs a statement; returns what was not done. Raises `RefusalError`."""

    def restore(self, current: str | None) -> None:
        """Makes a database the current database again, after the text of an EXEC statement has run."""

    def assume_database(self, name: str) -> None:
        """Continues after a refused USE as if the database existed."""

    def rows(self, view: str, database: str | None) -> Iterable[Row] | None:
        """Returns the rows of a view in the schema sys; None if the view is not about Service Broker."""


_EXEC_DEPTH_MAX: Final = 32
_TEXTS_MAX: Final = 100_000
_JUMPS_MAX: Final = 1_000
_UNDECIDED_CONDITION: Final = "its condition cannot be evaluated from the script"
_PROCEDURE: Final = "procedures are not executed"
_REMOTE: Final = "it runs on a linked server"
_UNDECIDED_TEXT: Final = "its text cannot be determined from the script"
_WAITING: Final = (
    statements.CreateService,
    statements.CreateContract,
    statements.CreatePriority,
    statements.CreateBinding,
    statements.CreateCertificate,
    statements.SetPermission,
    statements.SetOwner,
    statements.AlterService,
    statements.AlterQueue,
    statements.AlterRoute,
    statements.AlterMessageType,
    statements.AlterPriority,
    statements.AlterBinding,
    statements.AlterCertificate,
    statements.BackupCertificate,
    statements.AlterMasterKey,
    statements.OpenMasterKey,
    statements.AlterEndpoint,
)
_DATABASE_PROCEDURES: Final = frozenset(["sp_attach_db", "sp_attach_single_file_db", "sp_detach_db", "sp_renamedb"])
"""System procedures that attach, detach or rename databases."""
_SECURITY_KINDS: Final = frozenset(
    {"CREATE LOGIN", "ALTER LOGIN", "DROP LOGIN", "GRANT ON ENDPOINT", "DENY ON ENDPOINT", "REVOKE ON ENDPOINT"}
)
_FIXED_ROLES: Final = frozenset(
    {
        "db_accessadmin",
        "db_backupoperator",
        "db_datareader",
        "db_datawriter",
        "db_ddladmin",
        "db_denydatareader",
        "db_denydatawriter",
        "db_owner",
        "db_securityadmin",
    }
)
"""The roles of every database; they can own objects, but are not granted permissions."""
_MISSING: Final = frozenset({15151, 3701, 911})
_CREATED: Final = re.compile(r"\bCREATE ([A-Z]+(?: [A-Z]+)*)")
_AWAITED: Final = _MISSING | {15581}
"""Errors which mean that a statement needs an object that does not exist yet, or an open master key."""


class _BatchEndError(Exception):
    """RETURN was executed."""


class _JumpError(Exception):
    """GOTO was executed; execution continues at the label, in the statements that contain it."""

    def __init__(self, parsed: ParsedStatement, label: str) -> None:
        super().__init__(label)
        self.parsed = parsed
        self.label = label


@dataclass(slots=True)
class _Frame:
    """A batch, or a text that EXEC runs, with its variables."""

    statements: Sequence[ParsedStatement]
    variables: dict[str, Value] = field(default_factory=dict)
    depth: int = 0
    caught: DdlError | None = None
    """The error that CATCH handles."""
    jumps: int = 0
    """How many times GOTO was executed."""


@dataclass(frozen=True, slots=True)
class _Deferred:
    """A statement that needs an object which another file may create."""

    source: ScriptSource
    parsed: ParsedStatement
    current: str | None
    error: RefusalError


class ScriptRunner:
    """Runs batches; keeps the state that outlives a batch.

    Args:
        lenient: Whether a statement that does not exist in T-SQL is skipped with a note instead of refused.
        collects: Whether refused statements become notes, so that the rest of the script runs.
        any_order: Whether a statement waits until the end for an object that does not exist yet.

    Attributes:
        notes: What was not done.
        run_count: The number of Service Broker statements that ran.
        seen_count: The number of Service Broker statements in the scripts.
        queue_names: The names of the queues in the scripts, without case and schema; other objects are assumed to have other names.
    """

    def __init__(self, *, lenient: bool = False, collects: bool = False, any_order: bool = False) -> None:
        self.notes: Final[list[ScriptNote]] = []
        self.run_count = 0
        self.seen_count = 0
        self.queue_names: Final[set[str]] = set()
        self._role_names: Final[set[str]] = {"guest"}
        """The names of the roles in the scripts, without case, and of the user who stands for all logins without a user."""
        self._lenient: Final = lenient
        self._collects: Final = collects
        self._deferred: list[_Deferred] | None = [] if any_order else None
        self._is_noexec = False
        self._tries = 0
        self._texts_left = _TEXTS_MAX
        self._thrown: DdlError | None = None
        self._transactions: list[int] = []
        """The number of statements that had run at each BEGIN TRANSACTION."""
        self._modules: Final[dict[str, tuple[str, ...]]] = {}
        self._others: Final[dict[tuple[str, str], str]] = {}
        """The kinds of other objects that the script created, by database and name without case."""
        self._created: Final[set[str]] = set()
        """The databases that the script created, without case; they contain no other objects."""

    def report(self, error: DdlError, *, subject: str = "") -> None:
        """Adds the note of a refused statement, or of a file that cannot be decoded."""
        position = ScriptPosition(error.file, error.line or 1)
        text = str(error).split(": ", 1)[1] if ": " in str(error) else str(error)
        kind: NoteKind = "unreadable" if isinstance(error, EncodingError) else "refused"
        self.notes.append(ScriptNote(kind, subject, text, position, number=error.number))

    def parse(self, source: ScriptSource, batch: ScriptBatch) -> ParsedBatch:
        """Parses a batch; if errors are collected, continues to the end after an error."""
        parsed = parse(source, batch, report=self.report if self._collects else None)
        self.seen_count += len(parsed.instance_annotations)
        for one in walk(parsed.statements):
            self.seen_count += _is_about_broker(one)
            match one.statement:
                case statements.CreateQueue(queue) | statements.AlterQueue(queue) | statements.DropQueue(queue):
                    self.queue_names.add(folded(queue.name))
                case statements.Skipped(created=("ROLE", name)):
                    self._role_names.add(folded(name))
                case statements.CreateUser(name):  # in another database, the name may be that of a role
                    self._role_names.discard(folded(name))
        return parsed

    def run(self, target: ScriptTarget, source: ScriptSource, batch: ParsedBatch, *, is_repeated: bool = False) -> bool:
        """Runs a batch once; returns whether a Service Broker statement ran."""
        known, before = len(self.notes), self.run_count
        self._run_all(target, source, _Frame(batch.statements))
        if is_repeated:
            self.notes[known:] = [note for note in self.notes[known:] if note.kind in ("refused", "caught")][:1]
        return self.run_count > before

    def start_session(self) -> None:
        """Forgets state that ends with a session: NOEXEC and transactions."""
        self._is_noexec = False
        self._transactions.clear()

    def run_deferred(self, target: ScriptTarget) -> None:
        """Runs the deferred statements repeatedly, until none of them succeeds."""
        waiting, self._deferred = self._deferred or [], None
        while waiting:
            left = []
            for one in waiting:
                target.restore(one.current)
                try:
                    self._run_known(target, one.source, one.parsed)
                except RefusalError as refusal:
                    left.append(replace(one, error=refusal))
            if len(left) == len(waiting):
                for one in left:
                    with self._reporting(one.source, one.parsed):
                        raise one.error
                return
            waiting = left

    def note_empty(self, position: ScriptPosition) -> None:
        """Adds the note that the scripts contain no Service Broker statement."""
        self.notes.append(ScriptNote("empty", "", EMPTY, position))

    def _run_all(self, target: ScriptTarget, source: ScriptSource, frame: _Frame) -> None:
        try:
            self._body(target, source, frame.statements, frame)
        except _BatchEndError:
            pass
        except _JumpError as jump:
            with self._reporting(source, jump.parsed):
                raise _missing_label(jump.label, frame) from None

    def _body(
        self, target: ScriptTarget, source: ScriptSource, parsed: Sequence[ParsedStatement], frame: _Frame
    ) -> None:
        position = 0
        while position < len(parsed):
            try:
                self._run(target, source, parsed[position], frame)
                position += 1
            except _JumpError as jump:
                label = _label_position(parsed, jump.label)
                if label is None:
                    raise
                position = label

    def _run(self, target: ScriptTarget, source: ScriptSource, parsed: ParsedStatement, frame: _Frame) -> None:
        statement = parsed.statement
        if isinstance(statement, statements.SetNoexec):
            self._is_noexec = statement.is_on
        elif self._is_noexec or isinstance(statement, statements.Label):
            return
        elif isinstance(statement, statements.If):
            self._run_if(target, source, parsed, statement, frame)
        elif isinstance(statement, statements.Block):
            self._run_block(target, source, parsed, statement, frame)
        else:
            with self._reporting(source, parsed):
                self._run_simple(target, source, parsed, frame)

    def _run_block(
        self,
        target: ScriptTarget,
        source: ScriptSource,
        parsed: ParsedStatement,
        statement: statements.Block,
        frame: _Frame,
    ) -> None:
        """Runs BEGIN ... END, or TRY, and its CATCH if a statement is refused."""
        if statement.handler is None:
            self._body(target, source, statement.body, frame)
            return
        self._tries += 1
        try:
            self._body(target, source, statement.body, frame)
        except DdlError as error:
            caught = error
        else:
            return
        finally:
            self._tries -= 1
        before, frame.caught = frame.caught, caught
        try:
            self._body(target, source, statement.handler, frame)
        except DdlError as error:
            if error is not caught or not self._collects or self._tries:
                raise
            self.report(error)
        except (_BatchEndError, _JumpError):
            self._note_caught(source, parsed, caught)
            raise
        else:
            self._note_caught(source, parsed, caught)
        finally:
            frame.caught = before

    def _note_caught(self, source: ScriptSource, parsed: ParsedStatement, caught: DdlError) -> None:
        text = f"{str(caught).split(': ', 1)[-1]}; CATCH handled the error"
        position = ScriptPosition(caught.file, caught.line or source.line(parsed.start))
        self.notes.append(ScriptNote("caught", "", text, position, number=caught.number))

    def _throw_again(self, frame: _Frame) -> None:
        """Raises the error that the surrounding CATCH handles, if there is one."""
        self._thrown = frame.caught
        if frame.caught is not None:
            raise frame.caught

    def _run_simple(self, target: ScriptTarget, source: ScriptSource, parsed: ParsedStatement, frame: _Frame) -> None:
        match parsed.statement:
            case statements.While():
                self._note_block_not_executed(source, parsed, frame, "a loop is not executed")
            case statements.Assign(assignments):
                self._assign(target, assignments, frame)
            case statements.ExecuteText() as execute:
                self._execute_text(target, source, parsed, execute, frame)
            case statements.CallProcedure(changed_variables=changed):
                why = _REMOTE if parsed.statement.is_remote else _PROCEDURE
                self._note_not_executed(source, parsed, self._held(parsed, frame), why, kind="EXEC")
                _forget(frame, changed)
            case statements.TransactionControl(action):
                self._change_transaction(action, frame)
            case statements.Goto(label):
                raise _jump(parsed, label, frame)
            case statements.ReturnOrThrow(is_throw):
                if not is_throw:
                    raise _BatchEndError
                self._throw_again(frame)
                raise RefusalError("the script ends here with THROW")
            case statements.Unknown() | statements.Skipped() | statements.DefineModule():
                self._skip_other(target, source, parsed, frame)
            case _:
                self._run_known(target, source, parsed)

    def _skip_other(self, target: ScriptTarget, source: ScriptSource, parsed: ParsedStatement, frame: _Frame) -> None:
        match parsed.statement:
            case statements.Unknown(reason, number):
                if not self._lenient:
                    raise RefusalError(reason, number)
                self._note(source, parsed, "unknown", f"skipped: {reason}")
            case statements.DefineModule(kind, name, contained, misplaced):
                self._modules[folded(name)] = contained
                self._others[folded(target.current or ""), folded(name)] = "module"
                if misplaced:
                    self._note(source, parsed, "not_executed", _misplaced_text(kind, misplaced))
                else:
                    self._skip(source, parsed, kind)
            case statements.Skipped(kind, _, created) as skipped:
                if kind == "RAISERROR":
                    self._throw_again(frame)
                _forget_changed(frame, skipped)
                if created is not None and created[0] != "ROLE":
                    self._others[folded(target.current or ""), folded(created[1])] = created[0]
                self._skip(source, parsed, kind)

    def _run_known(self, target: ScriptTarget, source: ScriptSource, parsed: ParsedStatement) -> None:
        roles, statement = self._without_roles(parsed.statement)
        if roles:
            text = f"skipped {', '.join(roles)}: roles and guest are not supported; name users instead"
            self._note(source, parsed, "unsupported", text, parsed.verb or "")
        if statement is not None:
            self._run_on_target(target, source, replace(parsed, statement=statement))

    def _run_on_target(self, target: ScriptTarget, source: ScriptSource, parsed: ParsedStatement) -> None:
        statement = parsed.statement
        if isinstance(statement, SecurityStatement) and (target.current in SYSTEM_DATABASES - {"msdb"}):
            self._note(source, parsed, "security", "skipped (transport security)", parsed.verb or "")
            return
        misplaced = parsed.annotations.keys() - ANNOTATIONS.get(type(statement), frozenset())
        if misplaced:
            raise RefusalError(f"the annotation {min(misplaced)} does not apply to this statement")
        before = target.current
        try:
            remark = target.run(statement, parsed.annotations, source.position(parsed.start))
        except RefusalError as refusal:
            if getattr(statement, "if_exists", False) and refusal.number in _MISSING:
                return
            if self._deferred is not None and refusal.number in _AWAITED and isinstance(statement, _WAITING):
                self._deferred.append(_Deferred(source, parsed, target.current, refusal))
                return
            if self._collects and isinstance(statement, statements.UseDatabase):
                target.assume_database(statement.name)
            raise
        if self._deferred is not None and remark in (NO_ENDPOINT, OTHER_ENDPOINT):  # a later file may create it
            self._deferred.append(_Deferred(source, parsed, target.current, RefusalError(remark.text)))
            return
        self._follow_database(statement, before)
        self.run_count += not isinstance(statement, statements.UseDatabase)
        if remark is not None:
            self._note(source, parsed, remark.kind, remark.text, parsed.verb or "")

    def _without_roles(self, statement: Statement) -> tuple[list[str], Statement | None]:
        """Returns the roles to which a statement gives a permission or an object, and the rest of the statement; None if nothing is left of it."""
        match statement:
            case statements.SetPermission(users=users):
                roles = [user for user in users if folded(user) in self._role_names]
                others = tuple(user for user in users if user not in roles)
                return roles, replace(statement, users=others) if others else None
            case statements.CreateService(owner=str(owner)) | statements.CreateCertificate(owner=str(owner)):
                if folded(owner) in self._role_names | _FIXED_ROLES:
                    return [owner], replace(statement, owner=None)
            case statements.SetOwner(user=user) if folded(user) in self._role_names | _FIXED_ROLES:
                return [user], None
        return [], statement

    def _follow_database(self, statement: Statement, current: str | None) -> None:
        """Records which databases the script has created."""
        match statement:
            case statements.CreateDatabase(name, is_attach) if not is_attach:
                self._created.add(folded(name))
            case statements.DropDatabase(names):
                self._created.difference_update(map(folded, names))
            case statements.RestoreDatabase(name):
                self._created.discard(folded(name))
            case statements.AlterDatabase(name, _, str(new)) if folded(name or current or "") in self._created:
                self._created.remove(folded(name or current or ""))
                self._created.add(folded(new))

    def _run_if(
        self,
        target: ScriptTarget,
        source: ScriptSource,
        parsed: ParsedStatement,
        statement: statements.If,
        frame: _Frame,
    ) -> None:
        scope = _Scope(self, target, frame)
        for branch in statement.branches:
            verdict = is_true(branch.condition, scope)
            if isinstance(verdict, Undecided):
                self._note_block_not_executed(source, parsed, frame, _UNDECIDED_CONDITION)
                return
            if verdict:
                self._body(target, source, branch.body, frame)
                return
        self._body(target, source, statement.otherwise, frame)

    def _note_block_not_executed(self, source: ScriptSource, parsed: ParsedStatement, frame: _Frame, why: str) -> None:
        """Adds a note that a statement which contains other statements was not executed."""
        inner = [one for one in walk([parsed]) if one is not parsed]
        for one in inner:
            match one.statement:
                case statements.Assign(assignments):
                    _forget(frame, (name for name, _, _ in assignments))
                case statements.Skipped() as skipped:
                    _forget_changed(frame, skipped)
                case statements.CallProcedure(changed_variables=changed):
                    _forget(frame, changed)
        held = [fragment for one in inner for fragment in self._held(one, frame)]
        held += self._jumps(parsed, inner, frame)
        held += ("SET NOEXEC" for one in inner if one.statement == statements.SetNoexec(is_on=True))
        concerned = [(one, one.statement.kind) for one in inner if isinstance(one.statement, statements.Skipped)]
        concerned = [(one, kind) for one, kind in concerned if kind in EVENT_NOTIFICATION_KINDS | MESSAGE_KINDS]
        if concerned and not held:
            for one, each_kind in concerned:
                self._skip(source, one, each_kind)
            return
        kind = "WHILE" if isinstance(parsed.statement, statements.While) else "IF"
        self._note_not_executed(source, parsed, held, why, kind=kind)

    def _jumps(self, parsed: ParsedStatement, inner: Sequence[ParsedStatement], frame: _Frame) -> Iterator[str]:
        """Yields GOTO and RETURN within a statement if they may skip or repeat Service Broker statements."""
        held = [one.statement for one in inner]
        if any(isinstance(one, statements.Goto) for one in held) and self._holds_broker_statements(frame, after=-1):
            yield "GOTO"
        is_return = (isinstance(one, statements.ReturnOrThrow) and not one.is_throw for one in held)
        if any(is_return) and self._holds_broker_statements(frame, after=parsed.start):
            yield "RETURN"

    def _holds_broker_statements(self, frame: _Frame, *, after: int) -> bool:
        """Returns whether a batch seems to contain Service Broker statements after a position in the script."""
        later = (one for one in walk(frame.statements) if one.start > after)
        held = statements_of(fragment for one in later for fragment in self._held(one, frame))
        return any(verb != "USE" for verb in held)

    def _held(self, parsed: ParsedStatement, frame: _Frame) -> Iterator[str]:
        """Yields the Service Broker statements that a statement seems to contain, and fragments of statements in its texts."""
        if parsed.verb is not None:
            yield parsed.verb
        match parsed.statement:
            case statements.ExecuteText(text):
                yield from _fragments(text, frame)
            case statements.Assign(assignments):
                for _, _, assigned in assignments:
                    yield from _fragments(assigned or (), frame)
            case statements.CallProcedure(name, _, text, is_remote):
                if not is_remote:
                    yield from self._modules.get(folded(name), ())
                    yield from [name] * (name.lower() in _DATABASE_PROCEDURES)
                yield from _fragments(text, frame)

    def _assign(
        self, target: ScriptTarget, assignments: tuple[tuple[str, str, Tokens | None], ...], frame: _Frame
    ) -> None:
        scope = _Scope(self, target, frame)
        for name, operator, tokens in assignments:
            assigned = None if tokens is None else value(tokens, scope)
            if operator == "+=":
                before = frame.variables.get(name.lower(), UNDECIDED)
                is_text = isinstance(before, str) and isinstance(assigned, str)
                is_text = is_text and len(f"{before}") + len(f"{assigned}") <= TEXT_MAX
                holds = tuple(dict.fromkeys(fragments_in_value(before) + fragments_in_value(assigned)))
                assigned = f"{before}{assigned}" if is_text else Undecided(holds)
            elif operator != "=":
                assigned = UNDECIDED
            frame.variables[name.lower()] = assigned

    def _execute_text(
        self,
        target: ScriptTarget,
        source: ScriptSource,
        parsed: ParsedStatement,
        statement: statements.ExecuteText,
        frame: _Frame,
    ) -> None:
        scope = _Scope(self, target, frame)
        text = value(statement.text, scope)
        if text is None:
            return
        if statement.is_remote or not isinstance(text, str):
            why = _REMOTE if statement.is_remote else _UNDECIDED_TEXT
            kind = "EXEC of dynamic SQL that is known only at run time"
            self._note_not_executed(source, parsed, fragments_in_value(text), why, kind=kind)
            return
        self._texts_left -= 1
        if frame.depth >= _EXEC_DEPTH_MAX:
            raise RefusalError(f"EXEC nests dynamic SQL more than {_EXEC_DEPTH_MAX} levels deep", 217)
        if self._texts_left < 0:
            raise RefusalError(f"the script runs more than {_TEXTS_MAX:,} strings of dynamic SQL with EXEC", 217)
        inner = ScriptSource(text, None, outer=source.position(parsed.start))
        batch = self.parse(inner, text_batch(inner))
        variables = _parameters(statement, scope)
        before = target.current
        if statement.database is not None:
            target.run(statements.UseDatabase(statement.database), {}, source.position(parsed.start))
        try:
            self._run_all(target, inner, _Frame(batch.statements, variables, frame.depth + 1))
        finally:
            target.restore(before)

    def _change_transaction(self, action: str, frame: _Frame) -> None:
        if action == "BEGIN":
            self._transactions.append(self.run_count)
        elif action == "COMMIT" and self._transactions:
            self._transactions.pop()
        elif action == "ROLLBACK" and self._transactions:
            started = self._transactions[0]
            self._transactions.clear()
            if self.run_count > started:
                self._throw_again(frame)
                raise RefusalError(
                    "ROLLBACK cannot undo the statements since BEGIN TRANSACTION, because each batch is a transaction "
                    "of its own; remove these statements from the script"
                )

    def _note_not_executed(
        self, source: ScriptSource, parsed: ParsedStatement, held: Iterable[str], why: str, *, kind: str
    ) -> None:
        """Adds a note about a statement that was not executed; it counts as skipped if it contains no Service Broker statement."""
        verbs = ", ".join(statements_of(held))
        if verbs:
            self._note(source, parsed, "not_executed", f"not executed, although it contains {verbs}: {why}")
        else:
            self._skip(source, parsed, kind)

    def _skip(self, source: ScriptSource, parsed: ParsedStatement, kind: str) -> None:
        if kind in _SECURITY_KINDS:
            self._note(source, parsed, "security", "skipped (transport security)", kind)
        elif kind in EVENT_NOTIFICATION_KINDS:
            self._note(source, parsed, "unsupported", "not executed: event notifications are not supported", kind)
        elif kind in MESSAGE_KINDS:
            self._note(source, parsed, "messages", "not executed: scripts do not send or receive messages", kind)
        else:
            self._note(source, parsed, *NOT_ABOUT_BROKER, kind)

    def _note(
        self, source: ScriptSource, parsed: ParsedStatement, kind: NoteKind, text: str, statement: str = ""
    ) -> None:
        self.notes.append(ScriptNote(kind, parsed.subject, text, source.position(parsed.start), statement))

    @contextmanager
    def _reporting(self, source: ScriptSource, parsed: ParsedStatement) -> Iterator[None]:
        """Converts a refusal to an error with the position of the statement, or to a note."""
        try:
            yield
        except RefusalError as refusal:
            reason = refusal.reason + self._likely_cause(refusal)
            error = source.error(parsed.start, reason, subject=parsed.subject, number=refusal.number)
            if not self._collects or self._tries:
                raise error from None
            kind: NoteKind = "unknown" if isinstance(parsed.statement, statements.Unknown) else "refused"
            position = source.position(parsed.start)
            text = refusal_text(reason, subject=None, number=refusal.number)
            self.notes.append(ScriptNote(kind, parsed.subject, text, position, number=refusal.number))
        except DdlError as error:  # from a text that EXEC runs, or thrown again by CATCH
            if not self._collects or self._tries or error is self._thrown:
                raise
            self.report(error)
        except StorageError as error:
            message = refusal_text(str(error), subject=parsed.subject, number=None)
            raise type(error)(f"{source.location(parsed.start)}: {message}", file=error.file) from error

    def _likely_cause(self, refusal: RefusalError) -> str:
        """Returns the note of the last statement that was not executed but may create the missing object, to append to the reason."""
        if refusal.number not in _MISSING:
            return ""
        for note in reversed(self.notes):
            kinds = _CREATED.findall(note.text) if note.kind == "not_executed" else ()
            if any(refusal.reason.startswith(f"the {kind.lower()} ") for kind in kinds):
                return f"; see {note}"
        return ""

    def created_names(self, kinds: frozenset[str], database: str) -> list[str]:
        """Returns the names, without case, of the objects of these kinds that the script created in a database."""
        key = folded(database)
        return [name for (where, name), kind in self._others.items() if where == key and kind in kinds]

    def has_others(self, database: str) -> bool:
        """Returns whether a database may contain tables and other objects that the script did not create."""
        return folded(database) not in self._created


_ROUTE_KEYS: Final = frozenset({"route_id", "lifetime"})
_DATABASE_KEYS: Final = frozenset({"service_broker_guid"})
_ENDPOINT_KEYS: Final = frozenset({"addresses_only"})
ANNOTATIONS: Final[dict[type, frozenset[str]]] = {
    statements.CreateRoute: _ROUTE_KEYS,
    statements.AlterRoute: _ROUTE_KEYS,
    statements.UseDatabase: _DATABASE_KEYS,
    statements.CreateDatabase: _DATABASE_KEYS,
    statements.AlterDatabase: _DATABASE_KEYS,
    statements.RestoreDatabase: _DATABASE_KEYS,
    statements.CreateEndpoint: _ENDPOINT_KEYS,
    statements.AlterEndpoint: _ENDPOINT_KEYS,
}
"""The annotations that each kind of statement may have."""
EMPTY: Final = (
    "executes no statement that creates, alters or drops a database or an object of Service Broker "
    "(statements in procedures and triggers are not executed)"
)


class _OtherView(NamedTuple):
    """A view of objects that do not exist in an instance, such as tables, as far as the script creates them."""

    kinds: frozenset[str]
    """The kinds of the objects."""
    target_view: str | None = None
    """The view of the target whose rows the view contains too."""
    id_column: str = "object_id"


_OBJECTS: Final = _OtherView(frozenset({"TABLE", "SYNONYM", "SEQUENCE", "module"}), "service_queues")
_OTHER_VIEWS: Final = {
    "objects": _OBJECTS,
    "sysobjects": _OBJECTS,
    "procedures": _OtherView(frozenset({"module"})),
    "schemas": _OtherView(frozenset({"SCHEMA"}), "schemas", "schema_id"),
    "tables": _OtherView(frozenset({"TABLE"})),
    "views": _OtherView(frozenset({"module"})),
}


def _is_about_broker(parsed: ParsedStatement) -> bool:
    is_notification = isinstance(parsed.statement, statements.Skipped) and (
        parsed.statement.kind in EVENT_NOTIFICATION_KINDS
    )
    return parsed.verb not in (None, "USE") or bool(parsed.annotations) or is_notification


def _misplaced_text(kind: str, verbs: Sequence[str]) -> str:
    """Returns the message that the statements after a procedure, view or the like are part of it, because no GO separates them."""
    word = kind.rsplit(maxsplit=1)[-1]
    noun = "procedure" if word == "PROC" else word.lower()
    return (
        f"not executed, although {', '.join(verbs)} follows: up to GO, everything is part of the {noun}; "
        f"write GO before {verbs[0]}"
    )


def _jump(parsed: ParsedStatement, label: str, frame: _Frame) -> _JumpError:
    """Returns the jump of a GOTO; raises RefusalError if the batch has executed too many jumps."""
    frame.jumps += 1
    if frame.jumps > _JUMPS_MAX:
        raise RefusalError(
            f"this batch executed GOTO more than {_JUMPS_MAX:,} times, which is the limit; check it for an endless loop"
        )
    return _JumpError(parsed, label)


def _label_position(parsed: Sequence[ParsedStatement], label: str) -> int | None:
    """Returns the position of a label among statements; None if the label is not one of them."""
    for position, one in enumerate(parsed):
        if isinstance(one.statement, statements.Label) and folded(one.statement.name) == folded(label):
            return position
    return None


def _missing_label(label: str, frame: _Frame) -> RefusalError:
    """Returns the error of a GOTO that cannot jump to its label."""
    if _label_position([*walk(frame.statements)], label) is None:
        return RefusalError(f"the label {label} does not exist in this batch", 133)
    return RefusalError(f"the label {label} is within a block that does not contain the GOTO; move it out of the block")


def _fragments(tokens: Tokens, frame: _Frame) -> tuple[str, ...]:
    return fragments_in_tokens(tokens, lambda name: frame.variables.get(name.lower(), UNDECIDED))


def _forget(frame: _Frame, names: Iterable[str], holds: tuple[str, ...] = ()) -> None:
    """Marks variables as no longer known; `holds` are fragments of statements that they may now contain."""
    for name in names:
        before = frame.variables.get(name.lower())
        frame.variables[name.lower()] = Undecided(tuple(dict.fromkeys((*fragments_in_value(before), *holds))))


def _forget_changed(frame: _Frame, skipped: statements.Skipped) -> None:
    """Marks the variables that a skipped statement may change as unknown: each may now contain the texts of the statement and of other variables."""
    values = (frame.variables.get(name.lower()) for name in skipped.changed_variables)
    held = (*skipped.holds, *(fragment for before in values for fragment in fragments_in_value(before)))
    _forget(frame, skipped.changed_variables, held)


def _parameters(statement: statements.ExecuteText, scope: _Scope) -> dict[str, Value]:
    """Returns the parameters of sp_executesql by name."""
    declared = value(statement.declarations, scope) if statement.declarations else ""
    names = [part.split()[0] for part in str(declared).split(",") if part.split()] if isinstance(declared, str) else []
    given: dict[str, Value] = {name.lower(): UNDECIDED for name in names}
    for number, (name, tokens) in enumerate(statement.parameters):
        key = name or (names[number] if number < len(names) else None)
        if key is not None:
            given[key.lower()] = value(tokens, scope)
    return given


_FUNCTIONS: Final[dict[str, int]] = {"@@error": 0}


@dataclass(frozen=True, slots=True)
class _Scope:
    """The names that the conditions of a batch can refer to."""

    runner: ScriptRunner
    target: ScriptTarget
    frame: _Frame

    def variable(self, name: str) -> Value:
        """Returns the value of a variable."""
        if name == "error_number()":
            caught = self.frame.caught
            return None if caught is None else UNDECIDED if caught.number is None else caught.number
        if name.lower() == "@@trancount":
            return len(self.runner._transactions)  # noqa: SLF001 - its own state
        return self.frame.variables.get(name.lower(), _FUNCTIONS.get(name.lower(), UNDECIDED))

    def rows(self, view: str, database: str | None) -> Iterable[Row] | None:
        """Returns the rows of a view; None if the view is not supported."""
        other = _OTHER_VIEWS.get(view)
        if other is None:
            return self.target.rows(view, database)
        where = database or self.target.current or ""
        known = [] if other.target_view is None else list(self.target.rows(other.target_view, database) or ())
        known += (
            {"name": name, other.id_column: object_id(name)} for name in self.runner.created_names(other.kinds, where)
        )
        if self.runner.has_others(where):
            known.append(possible_row(known, other.id_column, named=self.runner.queue_names))
        return known

    def database_id(self, name: str | None) -> Value:
        """Returns the id of a database."""
        wanted = self.database_name() if name is None else name
        if not isinstance(wanted, str):
            return UNDECIDED
        rows = self.target.rows("databases", None) or ()
        found = [(equal(row["name"], wanted), row["database_id"]) for row in rows]
        known = next((number for is_wanted, number in found if is_wanted is True), None)
        return UNDECIDED if known is None and any(isinstance(is_wanted, Undecided) for is_wanted, _ in found) else known

    def database_name(self) -> Value:
        """Returns the name of the current database."""
        return UNDECIDED if self.target.current is None else self.target.current

    def object_id(self, name: str, kind: str | None) -> Value:
        """Returns the id of a queue, or of another object that the script created; undecided if another object may exist."""
        parts = _name_parts(name)
        if len(parts) > 3:  # noqa: PLR2004 - a linked server, database, schema, name
            return UNDECIDED
        *before, schema, unqualified = ["dbo", *parts]
        database = before[1] if len(before) > 1 and before[1] else None
        if folded(database or "") == "tempdb":
            return None
        if kind in (None, "SQ"):
            for row in self.target.rows("service_queues", database) or ():
                if row["object_id"] == object_id(schema or "dbo", unqualified):
                    return row["object_id"]
        if kind == "SQ":
            return None
        where, key = database or self.target.current or "", folded(unqualified)
        if key in self.runner.created_names(_OBJECTS.kinds, where):
            return object_id(key)
        return UNDECIDED if self.runner.has_others(where) and key not in self.runner.queue_names else None


def _name_parts(name: str) -> list[str]:
    """Splits a name with brackets at its dots."""
    parts: list[str] = [""]
    is_quoted = False
    for character in name:
        if character in "[]":
            is_quoted = character == "["
        elif character == "." and not is_quoted:
            parts.append("")
        else:
            parts[-1] += character
    return parts
