"""Evaluates conditions and values of T-SQL as far as a script and its instance determine them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias

from ssbroker.ddl.lexer import Token
from ssbroker.ddl.parser import fragments_in_text
from ssbroker.ddl.statements import Tokens


class BinaryName(str):
    """A name that is compared byte by byte: the name of a service, contract or message type."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Undecided:
    """A value that the script does not determine.

    Attributes:
        holds: The fragments of statements that the value seems to contain, if it is text.
        other_than: Values from which it differs; texts are without case.
    """

    holds: tuple[str, ...] = ()
    other_than: frozenset[str | int] = frozenset()


UNDECIDED: Final = Undecided()
Value: TypeAlias = str | int | bool | Undecided | None
Row: TypeAlias = Mapping[str, Value]
"""A row of a catalog view, by column in lower case."""


class PossibleRow(dict[str, Value]):
    """A row that a view may have besides the known rows; columns that it lacks have any value."""


class Scope(Protocol):
    """The names that an expression can refer to."""

    def variable(self, name: str) -> Value:
        """Returns the value of a variable or of a function such as @@TRANCOUNT."""

    def rows(self, view: str, database: str | None) -> Iterable[Row] | None:
        """Returns the rows of a view in the schema sys; None if they are not known."""

    def database_id(self, name: str | None) -> Value:
        """Returns the id of a database, or of the current database; None if the database does not exist."""

    def database_name(self) -> Value:
        """Returns the name of the current database."""

    def object_id(self, name: str, kind: str | None) -> Value:
        """Returns the id of a queue or another object; None if the object does not exist, undecided if it may or may not exist."""


class _UnknownSyntaxError(Exception):
    """The expression uses syntax that this module does not evaluate."""


def is_true(tokens: Tokens, scope: Scope) -> bool | Undecided:
    """Evaluates a condition; a condition that is NULL is not true."""
    try:
        evaluation = _Evaluation(tokens, scope)
        found = evaluation.condition()
        evaluation.expect_end()
    except (_UnknownSyntaxError, RecursionError):
        return UNDECIDED
    return found if isinstance(found, Undecided) else found is True


def value(tokens: Tokens, scope: Scope) -> Value:
    """Evaluates an expression that is a value, not a condition."""
    holds = fragments_in_tokens(tokens, scope.variable)
    try:
        evaluation = _Evaluation(tokens, scope)
        found = evaluation.value()
        evaluation.expect_end()
    except (_UnknownSyntaxError, RecursionError):
        return Undecided(holds)
    return Undecided(holds) if isinstance(found, Undecided) else found


def fragments_in_value(found: Value) -> tuple[str, ...]:
    """Returns the fragments of Service Broker statements that a value seems to contain."""
    if isinstance(found, Undecided):
        return found.holds
    return fragments_in_text(found) if isinstance(found, str) else ()


def fragments_in_tokens(tokens: Tokens, variable: Callable[[str], Value]) -> tuple[str, ...]:
    """Returns the fragments of Service Broker statements that an expression of texts and variables seems to contain."""
    # With QUOTED_IDENTIFIER OFF, the default of sqlcmd, a name in double quotes is a text.
    values = [
        variable(token.text) if token.key.startswith("@") else token.text
        for token in tokens
        if token.kind in ("string", "name") or token.key.startswith("@")
    ]
    fragments = list(fragments_in_text(" ".join(one for one in values if isinstance(one, str))))
    fragments += [fragment for one in values if isinstance(one, Undecided) for fragment in one.holds]
    return tuple(dict.fromkeys(fragments))


def equal(one: Value, other: Value) -> bool | Undecided | None:
    """Compares two values as SQL Server does by default: text ignoring case, except names that are compared byte by byte; None if a value is NULL."""
    if one is None or other is None:
        return None
    if isinstance(one, Undecided) or isinstance(other, Undecided):
        return False if _is_excluded(one, other) or _is_excluded(other, one) else UNDECIDED
    if isinstance(one, str) and isinstance(other, str):
        if isinstance(one, BinaryName) or isinstance(other, BinaryName):
            return str(one) == str(other)
        return folded(one).rstrip(" ") == folded(other).rstrip(" ")
    return _number(one) == _number(other)


def _is_excluded(found: Value, undecided: Value) -> bool:
    key = folded(found).rstrip(" ") if isinstance(found, str) else found
    return isinstance(undecided, Undecided) and key in undecided.other_than


def folded(name: str) -> str:
    """Returns a name in the form in which SQL Server's default collation compares it, without case.

    Examples:
        >>> folded("Sales") == folded("SALES")
        True
    """
    return name.casefold()


def _number(found: str | int) -> int:
    try:
        return int(found)
    except ValueError:
        raise _UnknownSyntaxError from None


_DIGITS_MAX: Final = 30
# Longer texts are not computed, because they are not part of a Service Broker statement.
TEXT_MAX: Final = 1_000_000
_COMBINATIONS_MAX: Final = 1_000_000
_TABLE_END: Final = frozenset({"WHERE", "GROUP", "ORDER", "HAVING", "UNION", "OPTION", "FOR"})
_TRANSPARENT: Final = frozenset({"CAST", "CONVERT", "TRY_CAST", "TRY_CONVERT"})
# Tokens that can follow a value in a condition.
_AFTER_VALUE: Final = frozenset({"=", "<", ">", "!", "+", "-", "BETWEEN", "COLLATE", "IN", "IS", "LIKE", "NOT"})
_COLUMN: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class _Table(NamedTuple):
    """A table in a FROM clause."""

    alias: str
    rows: list[Row] | None
    """The rows; None if they are not known."""
    on: Tokens = ()
    """The condition of a join."""


@dataclass
class _Evaluation:
    """A position in an expression, evaluated by recursive descent."""

    tokens: Tokens = field(repr=False)  # may include passwords
    scope: Scope
    row: dict[str, Row] = field(default_factory=dict)
    """The row of each table alias, in a WHERE clause."""
    index: int = 0

    @property
    def key(self) -> str:
        return self._ahead(0).key

    def _ahead(self, count: int) -> Token:
        at = self.index + count
        return self.tokens[at] if at < len(self.tokens) else Token("end", "", "", 0, 0)

    def _take(self) -> Token:
        token = self._ahead(0)
        self.index += 1
        return token

    def _accept(self, *keys: str) -> bool:
        if any(self._ahead(number).key != key for number, key in enumerate(keys)):
            return False
        self.index += len(keys)
        return True

    def _expect(self, key: str) -> None:
        if not self._accept(key):
            raise _UnknownSyntaxError

    def expect_end(self) -> None:
        if self.index < len(self.tokens):
            raise _UnknownSyntaxError

    def condition(self) -> bool | Undecided | None:
        found = self._conjunction()
        while self._accept("OR"):
            found = _negated(_and(_negated(found), _negated(self._conjunction())))
        return found

    def _conjunction(self) -> bool | Undecided | None:
        found = self._negation()
        while self._accept("AND"):
            found = _and(found, self._negation())
        return found

    def _negation(self) -> bool | Undecided | None:
        if self._accept("NOT"):
            return _negated(self._negation())
        return self._predicate()

    def _predicate(self) -> bool | Undecided | None:
        if self._accept("EXISTS"):
            rows = self._subquery(is_selected=False)
            return UNDECIDED if rows == [UNDECIDED] else bool(rows)
        if self.key == "(" and not self._is_subquery() and self._holds_condition():
            self._take()
            found = self.condition()
            self._expect(")")
            return found
        return self._comparison(self.value())

    def _comparison(self, left: Value) -> bool | Undecided | None:
        if self._accept("IS"):
            is_not = self._accept("NOT")
            self._expect("NULL")
            return UNDECIDED if isinstance(left, Undecided) else (left is None) != is_not
        is_not = self._accept("NOT")
        if self._accept("LIKE"):
            found = _like(left, self.value())
        elif self._accept("IN"):
            found = self._in(left)
        elif self._accept("BETWEEN"):
            low = self.value()
            self._expect("AND")
            found = _and(_negated(_is_less(left, low)), _negated(_is_less(self.value(), left)))
        elif is_not:
            raise _UnknownSyntaxError
        else:
            return self._comparison_result(left)
        return _negated(found) if is_not else found

    def _comparison_result(self, left: Value) -> bool | Undecided | None:
        sign = ""
        while self.key in ("=", "<", ">", "!"):
            sign += self._take().key
        right = self.value() if sign else UNDECIDED
        match sign:
            case "=":
                return equal(left, right)
            case "<>" | "!=":
                return _negated(equal(left, right))
            case "<":
                return _is_less(left, right)
            case ">=":
                return _negated(_is_less(left, right))
            case ">":
                return _is_less(right, left)
            case "<=":
                return _negated(_is_less(right, left))
        raise _UnknownSyntaxError

    def _in(self, left: Value) -> bool | Undecided | None:
        if self._is_subquery():
            members = self._subquery()
        else:
            self._expect("(")
            members = [self.value()]
            while self._accept(","):
                members.append(self.value())
            self._expect(")")
        result: bool | Undecided | None = False
        for member in members:
            result = _negated(_and(_negated(result), _negated(equal(left, member))))
        return result

    def value(self) -> Value:
        found = self._operand()
        while self.key in ("+", "-"):
            sign = self._take().key
            found = _sum(found, self._operand(), sign)
        if self._accept("COLLATE"):
            collation = self._take().text.upper()
            found = BinaryName(found) if isinstance(found, str) and "BIN" in collation else found
        return found

    def _operand(self) -> Value:
        token = self._ahead(0)
        if token.kind == "string":
            return self._take().text
        if self._is_subquery():
            return next(iter(self._subquery()), None)
        if self._accept("("):
            found = self.value()
            self._expect(")")
            return found
        if self._accept("-"):
            found = self._operand()
            return -found if isinstance(found, int) else UNDECIDED
        if token.kind == "word":
            if token.text.isdecimal() and token.text.isascii() and len(token.text) <= _DIGITS_MAX:
                return int(self._take().text)
            if token.key == "NULL":
                self._take()
                return None
            if token.key.startswith("@"):
                return self.scope.variable(self._take().text)
        if token.kind in ("word", "name"):
            return self._function() if self._ahead(1).key == "(" else self._column()
        raise _UnknownSyntaxError

    def _column(self) -> Value:
        parts = [self._take().text]
        while self._accept("."):
            parts.append(self._take().text)
        if self.key == "(":
            self._skip_parentheses()
            return UNDECIDED
        column, alias = parts[-1].lower(), parts[-2].lower() if len(parts) > 1 else None
        for name, row in self.row.items():
            if column in row and alias in (None, name):
                return row[column]
        if not self.row or _COLUMN.fullmatch(column) is None:
            raise _UnknownSyntaxError
        return UNDECIDED

    def _function(self) -> Value:
        name = self._take().key
        if name in _TRANSPARENT:
            return self._converted(name)
        if name == "COUNT":
            raise _UnknownSyntaxError
        start = self.index
        arguments = self._arguments()
        if arguments is None:
            self.index = start
            self._skip_parentheses()
            return UNDECIDED
        function = _FUNCTIONS.get(name)
        return UNDECIDED if function is None else function(self.scope, arguments)

    def _arguments(self) -> list[Value] | None:
        self._expect("(")
        arguments: list[Value] = []
        try:
            while not self._accept(")"):
                arguments.append(self.value())
                if self.key != ")":
                    self._expect(",")
        except _UnknownSyntaxError:
            return None
        return arguments

    def _converted(self, name: str) -> Value:
        """Evaluates CAST (x AS type) or CONVERT (type, x); converts to text if the type is a text type."""
        self._expect("(")
        if name.endswith("CAST"):
            found = self.value()
            self._expect("AS")
            kind = self._type()
        else:
            kind = self._type()
            self._expect(",")
            found = self.value()
            if self._accept(","):
                self.value()
        self._expect(")")
        if isinstance(found, int) and "CHAR" in kind:
            return str(int(found))
        return found if "CHAR" in kind or kind in ("SYSNAME", "INT", "BIGINT", "SMALLINT") else UNDECIDED

    def _type(self) -> str:
        kind = self._take().text.upper()
        if self.key == "(":
            self._skip_parentheses()
        return kind

    def _skip_parentheses(self) -> None:
        self._expect("(")
        depth = 1
        while depth:
            if self.index >= len(self.tokens):
                raise _UnknownSyntaxError
            key = self._take().key
            depth += (key == "(") - (key == ")")

    def _is_subquery(self) -> bool:
        return self.key == "(" and self._ahead(1).key == "SELECT"

    def _holds_condition(self) -> bool:
        """Returns whether the parentheses here contain a condition rather than a value: no operator follows them."""
        start = self.index
        self._skip_parentheses()
        follower, self.index = self.key, start
        return follower not in _AFTER_VALUE

    def _subquery(self, *, is_selected: bool = True) -> list[Value]:
        """Evaluates a subquery; returns the selected value of each row, or None for each row if only the number of rows matters.

        The last value is UNDECIDED if there may be other rows.
        """
        self._expect("(")
        self._expect("SELECT")
        if self._accept("TOP"):
            if self.key == "(":
                self._skip_parentheses()
            else:
                self._take()
        self._accept("DISTINCT")
        columns = self._tokens_until("FROM")
        if not self._accept("FROM"):
            self._expect(")")
            return [self._select_value(columns, {}) if is_selected else None]
        tables = self._tables()
        where: Tokens = self._tokens_until("") if self._accept("WHERE") else ()
        self._expect(")")
        rows, is_certain = self._matching(tables, where)
        others: list[Value] = [] if is_certain else [UNDECIDED]
        if not is_selected:
            return [None for _ in rows] + others
        keys = [token.key for token in columns]
        if keys[:2] in (["COUNT", "("], ["COUNT_BIG", "("]):
            return [len(rows)] if keys[-1] == ")" and is_certain else [UNDECIDED]
        return [self._select_value(columns, row) for row in rows] + others

    def _select_value(self, columns: Tokens, row: dict[str, Row]) -> Value:
        evaluation = _Evaluation(columns, self.scope, {**self.row, **row})
        found = evaluation.value()
        evaluation.expect_end()
        return found

    def _tokens_until(self, word: str) -> Tokens:
        """Returns the tokens up to a word, or to the parenthesis that closes the subquery."""
        start, depth = self.index, 0
        while self.index < len(self.tokens):
            key = self.key
            if depth == 0 and (key == ")" or (word and key == word) or (not word and key in _TABLE_END)):
                return self.tokens[start : self.index]
            depth += (key == "(") - (key == ")")
            self.index += 1
        raise _UnknownSyntaxError

    def _tables(self) -> list[_Table]:
        """Parses the tables in a FROM clause."""
        tables = [self._table()]
        while True:
            if self._accept(","):
                tables.append(self._table())
                continue
            self._accept("INNER")
            if not self._accept("JOIN"):
                return tables
            table = self._table()
            self._expect("ON")
            start, depth = self.index, 0
            while depth or self.key not in _TABLE_END | {")", "JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", ","}:
                if self.index >= len(self.tokens):
                    raise _UnknownSyntaxError
                depth += (self.key == "(") - (self.key == ")")
                self.index += 1
            tables.append(table._replace(on=self.tokens[start : self.index]))

    def _table(self) -> _Table:
        parts = [self._take().text]
        while self._accept("."):
            parts.append("" if self.key == "." else self._take().text)
        if self._ahead(0).kind == "symbol" and self.key == "(":
            self._skip_parentheses()  # a table function
            parts = ["?"]
        name = parts[-1]
        alias = name
        if self._accept("AS") or (
            self._ahead(0).kind in ("word", "name")
            and self.key not in _TABLE_END | {"ON", "JOIN", "INNER", "WITH", "LEFT"}
        ):
            alias = self._take().text
        if self.key in ("WITH", "("):
            self._accept("WITH")
            self._skip_parentheses()
        schema = parts[-2].lower() if len(parts) > 1 else ""
        database = parts[-3] if len(parts) > 2 and parts[-3] else None  # noqa: PLR2004 - database, schema, name
        is_remote = len(parts) > 3  # noqa: PLR2004 - a linked server, database, schema, name
        is_system = (schema == "sys" or name.lower().startswith("sys")) and not is_remote
        rows = self.scope.rows(name.lower(), database) if is_system else None
        return _Table(alias.lower(), None if rows is None else list(rows))

    def _matching(self, tables: list[_Table], where: Tokens) -> tuple[list[dict[str, Row]], bool]:
        """Returns the combinations of rows that satisfy all conditions, and whether there are certainly no others."""
        known = [(table.alias, table.rows) for table in tables if table.rows is not None]
        if len(known) < len(tables):
            return [], False
        conditions = [table.on for table in tables if table.on] + ([where] if where else [])
        wanted = _wanted_name(where)
        if len(known) == 1 and wanted is not None:
            ((alias, rows),) = known
            known = [(alias, [row for row in rows if _may_have_name(row, wanted)])]
        if math.prod(len(rows) for _, rows in known) > _COMBINATIONS_MAX:
            return [], False
        found: list[dict[str, Row]] = []
        is_certain = True
        for combination in _combinations(known):
            holds: bool | Undecided | None = True
            for condition in conditions:
                evaluation = _Evaluation(condition, self.scope, {**self.row, **combination})
                holds = _and(holds, evaluation.condition())
                evaluation.expect_end()
            if holds is True and any(isinstance(row, PossibleRow) for row in combination.values()):
                holds = UNDECIDED
            is_certain &= not isinstance(holds, Undecided)
            if holds is True:
                found.append(combination)
        return found, is_certain


def _wanted_name(where: Tokens) -> str | None:
    """Returns the folded name that a row must have to meet a condition; None if rows with other names may meet it too.

    The condition then need not be evaluated for rows with other names.
    """
    keys = [token.key for token in where]
    first = 2 if keys[1:2] == ["."] else 0
    column = where[first].text.lower() if len(where) > first else ""
    is_comparison = column == "name" and keys[first + 1 : first + 2] == ["="] and len(where) > first + 2
    if not is_comparison or where[first + 2].kind != "string" or {"OR", "COLLATE", "+"} & set(keys):
        return None
    return folded(where[first + 2].text) if where[first + 2].text == where[first + 2].text.rstrip(" ") else None


def _may_have_name(row: Row, wanted: str) -> bool:
    name = row.get("name")
    return not isinstance(name, str) or folded(name) == wanted


def _combinations(tables: list[tuple[str, list[Row]]]) -> Iterator[dict[str, Row]]:
    if not tables:
        yield {}
        return
    (alias, rows), *rest = tables
    for row in rows:
        for others in _combinations(rest):
            yield {alias: row, **others}


def _and(one: bool | Undecided | None, other: bool | Undecided | None) -> bool | Undecided | None:  # noqa: FBT001 - logic
    if one is False or other is False:
        return False
    if isinstance(one, Undecided) or isinstance(other, Undecided):
        return UNDECIDED
    return None if one is None or other is None else True


def _negated(one: bool | Undecided | None) -> bool | Undecided | None:  # noqa: FBT001 - logic
    return one if one is None or isinstance(one, Undecided) else not one


def _is_less(one: Value, other: Value) -> bool | Undecided | None:
    if one is None or other is None:
        return None
    if isinstance(one, Undecided) or isinstance(other, Undecided):
        return UNDECIDED
    if isinstance(one, str) and isinstance(other, str):
        return folded(one) < folded(other)
    return _number(one) < _number(other)


def _like(text: Value, pattern: Value) -> bool | Undecided | None:
    if text is None or pattern is None:
        return None
    if isinstance(text, Undecided) or isinstance(pattern, Undecided):
        return UNDECIDED
    first, *others = _split_pattern(str(pattern))
    # Atomic groups: the first match of a part is as good as any later match, so the time does not grow with the number
    # of parts.
    regular = first + "".join(f"(?>.*?{part})" for part in others[:-1]) + "".join(f".*{part}" for part in others[-1:])
    flags = re.DOTALL if isinstance(text, BinaryName) else re.DOTALL | re.IGNORECASE
    try:
        return re.fullmatch(regular, str(text), flags) is not None
    except re.error:
        return UNDECIDED


_WILDCARD: Final = re.compile(r"\[(?P<negation>\^?)(?P<set>.[^\]]*)\]|.", re.DOTALL)


def _split_pattern(pattern: str) -> list[str]:
    """Splits a LIKE pattern at each %; returns the parts as regular expressions."""
    parts = [""]
    for found in _WILDCARD.finditer(pattern):
        if found[0] == "%":
            parts.append("")
        elif found["set"] is None:
            parts[-1] += "." if found[0] == "_" else re.escape(found[0])
        else:
            members = re.escape(found["set"]).replace(r"\-", "-")
            parts[-1] += f"[{found['negation']}{members}]"
    return parts


def _sum(one: Value, other: Value, sign: str) -> Value:
    if isinstance(one, Undecided) or isinstance(other, Undecided):
        return UNDECIDED
    if one is None or other is None:
        return None
    if isinstance(one, str) and isinstance(other, str) and sign == "+":
        return one + other if len(one) + len(other) <= TEXT_MAX else UNDECIDED
    left, right = _number(one), _number(other)
    return left + right if sign == "+" else left - right


Function: TypeAlias = Callable[[Scope, list[Value]], Value]


def _null_if_any_null(function: Callable[..., Value]) -> Function:
    """Returns a function that is NULL if an argument is NULL, and undecided if an argument is undecided."""

    def call(_scope: Scope, arguments: list[Value]) -> Value:
        if any(isinstance(argument, Undecided) for argument in arguments):
            return UNDECIDED
        if any(argument is None for argument in arguments):
            return None
        if math.prod(len(argument) + 1 for argument in arguments if isinstance(argument, str)) > TEXT_MAX:
            return UNDECIDED
        try:
            return function(*arguments)
        except (TypeError, ValueError, AttributeError, OverflowError):
            return UNDECIDED

    return call


def _database_id(scope: Scope, arguments: list[Value]) -> Value:
    if not arguments:
        return scope.database_id(None)
    (name, *_) = arguments
    return scope.database_id(name) if isinstance(name, str) else name


def _object_id(scope: Scope, arguments: list[Value]) -> Value:
    name, kind = (*arguments, None)[:2]
    if not isinstance(name, str) or isinstance(kind, Undecided):
        return name if name is None else UNDECIDED
    return scope.object_id(name, str(kind) if kind is not None else None)


def _first_known(_scope: Scope, arguments: list[Value]) -> Value:
    """Evaluates ISNULL and COALESCE."""
    for argument in arguments:
        if argument is not None:
            return argument
    return None


def _concatenated(_scope: Scope, arguments: list[Value]) -> Value:
    if any(isinstance(argument, Undecided) for argument in arguments):
        return UNDECIDED
    parts = ["" if argument is None else str(argument) for argument in arguments]
    return "".join(parts) if sum(map(len, parts)) <= TEXT_MAX else UNDECIDED


def _quoted(text: str, quote: str = "[") -> str:
    opening, closing = ("[", "]") if quote in "[]" else (quote, quote)
    return opening + text.replace(closing, closing * 2) + closing


_FUNCTIONS: Final[dict[str, Function]] = {
    "CHAR": _null_if_any_null(chr),
    "COALESCE": _first_known,
    "CONCAT": _concatenated,
    "DB_ID": _database_id,
    "DB_NAME": lambda scope, arguments: UNDECIDED if arguments else scope.database_name(),
    "ERROR_NUMBER": lambda scope, _: scope.variable("error_number()"),
    "ISNULL": _first_known,
    # Scripts are assumed to run with all permissions that they check.
    "HAS_PERMS_BY_NAME": lambda _scope, _arguments: 1,
    "IS_MEMBER": lambda _scope, _arguments: 1,
    "IS_ROLEMEMBER": lambda _scope, _arguments: 1,
    "IS_SRVROLEMEMBER": lambda _scope, _arguments: 1,
    "LEN": _null_if_any_null(lambda text: len(text.rstrip(" "))),
    "LOWER": _null_if_any_null(lambda text: text.lower()),
    "LTRIM": _null_if_any_null(lambda text: text.lstrip(" ")),
    "NCHAR": _null_if_any_null(chr),
    "OBJECT_ID": _object_id,
    "QUOTENAME": _null_if_any_null(_quoted),
    "REPLACE": _null_if_any_null(
        lambda text, old, new: re.sub(re.escape(old), lambda _: new, text, flags=re.IGNORECASE)
    ),
    "RTRIM": _null_if_any_null(lambda text: text.rstrip(" ")),
    "UPPER": _null_if_any_null(lambda text: text.upper()),
}
