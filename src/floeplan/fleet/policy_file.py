"""Reading a policy: TOML, checked key by key; all errors at once, each with the file and the line.

``tomllib`` reports lines for syntax errors only. The line of a value is found when it is needed: it is the last line of
the shortest beginning of the file that parses and contains the value.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from floeplan.errors import InvalidOptionError
from floeplan.fleet.lease import SKEW
from floeplan.fleet.policy import (
    ADVISE,
    DAYS,
    METADATA,
    OFF,
    ON,
    REWRITE,
    RUNS_TABLE,
    TABLE,
    Budget,
    Policy,
    Rule,
    Settings,
    Window,
    kebab,
)
from floeplan.maintenance.orphans import LEAST_AGE
from floeplan.text import parse_count
from floeplan.times import is_age, parse_age

_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_UNITS |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZES_END = 2**63
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", re.IGNORECASE)
_WINDOW = re.compile(r"(?:([a-z,\- ]+?)\s+)?(\d{1,2}):(\d\d)\s*-\s*(\d{1,2}):(\d\d)", re.IGNORECASE)
_LONGEST_LEASE = timedelta(days=1)
_NOTHING = ("!*",)
_STRATEGIES = ("sort", "zorder", "hilbert")

KeyPath: TypeAlias = tuple[str | int, ...]
Parser: TypeAlias = Callable[[Any], Any]


def read_policy(path: str | Path) -> Policy:
    """Read and check a policy file.

    Raises:
        InvalidOptionError: There is no such file, or it is not a valid policy; the message names the lines.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # some editors begin a file with a mark
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidOptionError(f"cannot read the policy {path}: {reason}", context={"policy": str(path)}) from error
    return parse_policy(text, str(path))


def parse_policy(text: str, source: str = "policy") -> Policy:
    """Check the text of a policy; ``source`` is its name in errors."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a syntax error, too many digits, too many brackets
        line = re.search(r"at line (\d+)", str(error))
        at = int(line[1]) if line else len(text.splitlines())
        message = f"{source}:{at}: {re.sub(r' [(]at .*[)]$', '', str(error))}"
        raise InvalidOptionError(message, context={"policy": source, "line": at}) from error
    file = _File(text, source)
    policy = file.policy(document)
    if (cycle := policy.cycle(_names(policy.rules))) is not None:
        file.problems.append(cycle)
    file.check()
    return policy


def _names(rules: Iterable[Rule]) -> list[str]:
    """The names and patterns of some rules that stand for tables of their own."""
    found = (name for rule in rules for name in (*rule.match, *rule.changes.get("after", ())))
    return sorted({name for name in found if not re.search(r"^!|[?\[]", name)})


class ExpectedError(Exception):
    """What a value must be."""


@dataclass(frozen=True, slots=True)
class _File:
    """A policy that is being checked."""

    text: str
    source: str
    problems: list[tuple[int, str]] = field(default_factory=list)
    """What is wrong, and on which line."""

    def check(self) -> None:
        """Raise one error for all problems."""
        if self.problems:
            found = sorted(self.problems)
            errors = [{"line": line, "message": problem} for line, problem in found]
            raise InvalidOptionError(
                "; ".join(f"{self.source}:{line}: {problem}" for line, problem in found),
                context={"policy": self.source, "line": found[0][0], "errors": errors},
            )

    def policy(self, document: Mapping[str, Any]) -> Policy:
        self._known(document, (), {*_TOP, "timezone", "budget", "defaults", "tables"})
        zone = self._parsed(document, (), "timezone", _zone, ZoneInfo("UTC"))
        parsers = _settings_parsers(zone)
        rules = []
        if "defaults" in document:
            defaults = self._table(document["defaults"], ("defaults",))
            rules.append(self._rule(defaults, ("defaults",), parsers, ("*",)))
        tables = document.get("tables", [])
        if not isinstance(tables, list):
            self._refuse(("tables",), "write each rule as [[tables]]")
            tables = []
        for at, one in enumerate(tables):
            rules.append(self._rule(self._table(one, ("tables", at)), ("tables", at), parsers, None))
        budget = self._table(document.get("budget", {}), ("budget",))
        self._known(budget, ("budget",), set(_BUDGET))
        limits = {name: self._parsed(budget, ("budget",), name, parse, None) for name, parse in _BUDGET.items()}
        top = {name: self._parsed(document, (), name, parse, None) for name, parse in _TOP.items() if name in document}
        if top.get("runs") == OFF:
            top["runs"] = None
        return Policy(tuple(rules), Budget(**limits), source=self.source, **top)

    def _rule(
        self, table: Mapping[str, Any], path: KeyPath, parsers: Mapping[str, Parser], match: tuple[str, ...] | None
    ) -> Rule:
        self._known(table, path, {*parsers} if match else {*parsers, "match"})
        if match is None:
            if "match" not in table:
                self._refuse(path, 'a rule needs match, such as match = ["db.*"]')
            match = self._parsed(table, path, "match", _texts, _NOTHING)
        values = {name: self._parsed(table, path, name, parse, None) for name, parse in parsers.items()}
        changes = {name.replace("-", "_"): value for name, value in values.items() if value is not None}
        return Rule(match, changes, self.line(path))

    def _parsed(self, table: Mapping[str, Any], path: KeyPath, name: str, parse: Parser, default: Any) -> Any:
        if name not in table:
            return default
        try:
            return parse(table[name])
        except ExpectedError as problem:
            self._refuse((*path, name), f"{name} must be {problem}, not {_toml(table[name])}")
            return default

    def _known(self, table: Mapping[str, Any], path: KeyPath, known: set[str]) -> None:
        for name in table:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=2)
                hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(sorted(known))}"
                if name in _TOP or name == "timezone":
                    hint = "it is a key of the file: write it above the first table"
                elif not path and name in _settings_parsers(ZoneInfo("UTC")):
                    hint = "it is a setting: write it below [defaults] or [[tables]]"
                self._refuse((*path, name), f"unknown key {name!r}; {hint}")

    def _table(self, value: Any, path: KeyPath) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            self._refuse(path, f"{path[0]} must be a table, not {_toml(value)}")
            return {}
        return value

    def _refuse(self, path: KeyPath, problem: str) -> None:
        self.problems.append((self.line(path), problem))

    def line(self, path: KeyPath) -> int:
        """The line on which a value, or the header of a table, is written."""
        lines = self.text.splitlines()
        end = next((n for n in range(1, len(lines)) if _has("\n".join(lines[:n]), path)), len(lines))
        name = str(path[-1] if isinstance(path[-1], str) else path[-2])
        # A value of several lines begins with its key.
        starts = (n for n in range(end, 0, -1) if re.match(rf"\s*\[*\s*[\"']?{re.escape(name)}\b", lines[n - 1]))
        return next(starts, end)


def _has(text: str, path: KeyPath) -> bool:
    try:
        found: Any = tomllib.loads(text)
        for part in path:
            found = found[part]
    except (tomllib.TOMLDecodeError, LookupError, TypeError):
        return False
    return True


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


# --- parsers of values; each raises ``ExpectedError`` with what the value must be


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ExpectedError("true or false")
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ExpectedError("a whole number of at least 1")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ExpectedError("a number above 0")
    return float(value)


def _ratio(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ExpectedError("a fraction above 0 and at most 1")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ExpectedError("text")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not values or not all(isinstance(one, str) and one for one in values):
        raise ExpectedError("text or a list of texts")
    return tuple(values)


def _texts_or_none(value: Any) -> tuple[str, ...]:
    """As ``_texts``; an empty list overrides an earlier rule."""
    return () if value == [] else _texts(value)


def parse_size(value: Any) -> int:
    """Bytes, as a number or as ``256 MiB``."""
    size: float = value if isinstance(value, int) and not isinstance(value, bool) else 0
    if isinstance(value, str) and (found := _SIZE.fullmatch(value.strip())) and found[2].lower() in _UNITS:
        size = float(found[1]) * _UNITS[found[2].lower()]
    if not 1 <= size < _SIZES_END:
        raise ExpectedError('a size such as 268435456 or "256 MiB"')
    return int(size)


def parse_duration(value: Any) -> timedelta:
    """A duration such as ``7d``, ``12h``, ``30m`` or ``90s``."""
    with suppress(InvalidOptionError):  # it has more days than a timedelta
        if isinstance(value, str) and is_age(value):
            return parse_age(value, "")
    raise ExpectedError('a duration such as "7d", "12h", "30m" or "90s"')


def _orphan_age(value: Any) -> timedelta:
    age = parse_duration(value)
    if age < LEAST_AGE:
        raise ExpectedError('at least "1d", because younger files may belong to a running commit')
    return age


def _lease(value: Any) -> timedelta:
    lasts = parse_duration(value)
    if lasts < 4 * SKEW:
        raise ExpectedError('at least "2m", because the clocks of two machines may differ by 30 seconds')
    if lasts > _LONGEST_LEASE:
        raise ExpectedError('at most "1d", because a table stays reserved that long for a run that died')
    return lasts


def _runs(value: Any) -> str:
    if value != OFF and not (isinstance(value, str) and "." in value and all(value.split("."))):
        raise ExpectedError(f'"{OFF}" or a table such as "{RUNS_TABLE}"')
    return str(value)


def _choice(*choices: str) -> Parser:
    def parse(value: Any) -> str:
        if value not in choices:
            raise ExpectedError(" or ".join(f'"{one}"' for one in choices))
        return str(value)

    return parse


def _cluster(value: Any) -> str | tuple[str, ...]:
    if value in (OFF, ADVISE):
        return str(value)
    try:
        return _texts(value if isinstance(value, list) else None)
    except ExpectedError:
        raise ExpectedError(f'"{OFF}", "{ADVISE}" or a list of columns') from None


def _zone(value: Any) -> ZoneInfo:
    try:
        return ZoneInfo(_text(value))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ExpectedError('a time zone such as "Europe/Berlin"') from None


def _windows(zone: ZoneInfo) -> Parser:
    def parse(value: Any) -> tuple[Window, ...]:
        return tuple(_window(text, zone) for text in _texts_or_none(value))

    return parse


def _window(text: str, zone: ZoneInfo) -> Window:
    problem = ExpectedError('times such as "22:00-06:00" or "sat,sun 00:00-24:00"')
    found = _WINDOW.fullmatch(text.strip())
    if found is None:
        raise problem
    start, end = (60 * int(found[at]) + int(found[at + 1]) for at in (2, 4))
    if max(int(found[3]), int(found[5])) > 59 or start >= 24 * 60 or end > 24 * 60 or start == end:
        raise problem
    days = set[int]()
    for part in (found[1] or "mon-sun").lower().split(","):
        first, _, last = (one.strip()[:3] for one in part.partition("-"))
        if first not in DAYS or (last and last not in DAYS):
            raise problem
        begin, length = DAYS.index(first), (DAYS.index(last or first) - DAYS.index(first)) % 7
        days |= {(begin + day) % 7 for day in range(length + 1)}
    return Window(text, frozenset(days), start, end, zone)


_TOP: Mapping[str, Parser] = {"catalogs": _texts, "runs": _runs, "reports": _text, "lease": _lease}
_BUDGET: Mapping[str, Parser] = {"bytes": parse_size, "minutes": _number, "files": _count}


def _settings_parsers(zone: ZoneInfo) -> Mapping[str, Parser]:
    """The parser of every setting by its name in a policy."""
    special: dict[str, Parser] = {
        "upgrade-specs": _choice(METADATA, REWRITE, OFF),
        "target-file-size": parse_size,
        "delete-ratio": _ratio,
        "cluster": _cluster,
        "cluster-strategy": _choice(*_STRATEGIES),
        "expire": _choice(ON, OFF, TABLE),
        "orphans-older-than": _orphan_age,
        "windows": _windows(zone),
        "after": _texts_or_none,
    }
    by_type = {"bool": _flag, "int": _count, "int | None": _count, "timedelta": parse_duration}
    by_type["timedelta | None"] = parse_duration
    names = {kebab(one.name): str(one.type) for one in fields(Settings)}
    return {name: special.get(name) or by_type[type_] for name, type_ in names.items()}


def option_bytes(text: str | None, option: str) -> int | None:
    """The bytes of a command-line option."""
    if text is None:
        return None
    try:
        return 0 if parse_count(text) == 0 else parse_size(parse_count(text) or text)
    except ExpectedError as problem:
        raise InvalidOptionError(f"{option} is {text!r} but must be {problem}", context={"option": option}) from None
