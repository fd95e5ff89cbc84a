"""Policies: what they mean for each table, and errors that name the line."""

from __future__ import annotations

import dataclasses
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from floeplan.errors import InvalidOptionError
from floeplan.fleet.policy import Settings, kebab
from floeplan.fleet.policy_file import parse_policy, read_policy

pytestmark = pytest.mark.unit

WHOLE = """\
catalogs = ["prod"]
timezone = "Europe/Berlin"
runs = "ops.runs"
reports = "ops.scans"
lease = "5m"

[budget]
bytes = "1.5 GiB"
minutes = 90
files = 1000

[defaults]
compact-min-files = 20
expire = "on"
expire-older-than = "7d"

[[tables]]
match = ["db.*", "!db.tmp_*"]
target-file-size = "256 MiB"
cluster = ["region", "ts"]
cluster-strategy = "zorder"
partition-age = "2h"
windows = [
  "22:00-06:00",
  "sat-sun 00:00-24:00",
]

[[tables]]
match = "db.events"
after = ["db.raw_*"]
compact-min-files = 5
remove-orphans = true
"""


def test_later_rules_override_earlier_ones() -> None:
    policy = parse_policy(WHOLE)
    assert (policy.catalogs, policy.runs, policy.reports) == (("prod",), "ops.runs", "ops.scans")
    assert policy.lease == timedelta(minutes=5)
    assert dataclasses.astuple(policy.budget) == (1_610_612_736, 90.0, 1000)
    events, lines = policy.settings("db.events")
    assert lines == (12, 17, 28)
    assert (events.compact_min_files, events.target_file_size, events.remove_orphans) == (5, 256 * 2**20, True)
    assert (events.cluster, events.cluster_strategy, events.after) == (("region", "ts"), "zorder", ("db.raw_*",))
    other, lines = policy.settings("db.tmp_1")
    assert (other.compact_min_files, other.target_file_size, lines) == (20, None, (12,))
    assert policy.settings("x.y")[0].expire_older_than == timedelta(days=7)


def test_every_setting_can_be_written_and_is_shown_as_it_is_written() -> None:
    written = {
        "windows": '["mon 01:00-02:00"]',
        "after": '["a.b"]',
        "cluster": '["c"]',
        "upgrade-specs": '"rewrite"',
        "cluster-strategy": '"hilbert"',
        "expire": '"off"',
        "target-file-size": "1024",
        "delete-ratio": "0.5",
        "maintain": "false",
        "repair": "false",
        "compact": "false",
        "rewrite-manifests": "false",
        "remove-orphans": "true",
    }
    for field in dataclasses.fields(Settings):
        name = kebab(field.name)
        text = written.get(name) or ('"36h"' if "timedelta" in str(field.type) else "7")
        changed, _ = parse_policy(f"[defaults]\n{name} = {text}").settings("a.b")
        assert changed != Settings(), name
        shown = changed.to_dict()[name]
        assert parse_policy(f"[defaults]\n{name} = {str(shown).lower() if isinstance(shown, bool) else repr(shown)}")


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("[budget\n", 1, "Expected ']'"),
        (f"lease = {'[' * 9999}", 1, "maximum recursion depth exceeded"),
        (f"lease = {'9' * 9999}", 1, "Exceeds the limit"),
        ("[defaults]\ncompact = 1\n", 2, "compact must be true or false, not 1"),
        ("[defaults]\n\ncompat = true\n", 3, "unknown key 'compat'; did you mean compact"),
        ("budget = 3\n", 1, "budget must be a table, not 3"),
        ('[budget]\nminutes = 5\nbytes = "5 XiB"\n', 3, 'bytes must be a size such as 268435456 or "256 MiB"'),
        ("[budget]\nhours = 5\n", 2, "unknown key 'hours'"),
        (
            '[[tables]]\nmatch = "a"\nreports = "x"\n',
            3,
            "unknown key 'reports'; it is a key of the file: write it above",
        ),
        ("compact = true\n", 1, "unknown key 'compact'; it is a setting: write it below [defaults] or [[tables]]"),
        ("[[tables]]\ncompact = true\n", 1, "a rule needs match"),
        ('[[tables]]\nmatch = "a"\n[[tables]]\nmatch = "b"\nexpire = "yes"\n', 5, 'expire must be "on" or "off"'),
        ('[defaults]\norphans-older-than = "2h"\n', 2, 'must be at least "1d"'),
        ('[defaults]\npartition-age = "soon"\n', 2, 'a duration such as "7d"'),
        ('[defaults]\nwindows = [\n  "22:00-06:00",\n  "noon",\n]\n', 2, 'times such as "22:00-06:00"'),
        ('[defaults]\nwindows = "22:60-06:00"\n', 2, "times such as"),
        ('timezone = "Mars"\n', 1, 'a time zone such as "Europe/Berlin"'),
        ('[defaults]\ncluster = "region"\n', 2, '"off", "advise" or a list of columns'),
        ("[defaults]\ndelete-ratio = 2\n", 2, "a fraction above 0 and at most 1"),
        ('lease = "30s"\n', 1, 'lease must be at least "2m"'),
        ('lease = "9999d"\n', 1, 'lease must be at most "1d"'),
        ('[defaults]\npartition-age = "99999999999d"\n', 2, 'a duration such as "7d"'),
        (f'[defaults]\ntarget-file-size = "{"9" * 400}"\n', 2, "target-file-size must be a size such as"),
        (f"[budget]\nbytes = {'9' * 400}\n", 2, "bytes must be a size such as"),
        ('runs = "runs"\n', 1, 'runs must be "off" or a table such as "floeplan.maintenance_runs", not "runs"'),
        ('runs = ".runs"\n', 1, 'runs must be "off" or a table such as'),
        ("tables = 3\n", 1, "write each rule as [[tables]]"),
        ("catalogs = []\n", 1, "text or a list of texts"),
        ("[defaults]\ncompact-min-files = 0\n", 2, "a whole number of at least 1"),
    ],
)
def test_an_error_names_the_line(text: str, line: int, problem: str) -> None:
    with pytest.raises(InvalidOptionError) as raised:
        parse_policy(text, "fleet.toml")
    assert raised.value.message.startswith(f"fleet.toml:{line}: ")
    assert problem in raised.value.message
    assert (raised.value.context["policy"], raised.value.context["line"]) == ("fleet.toml", line)


def test_all_errors_are_reported_at_once_each_with_its_line() -> None:
    text = (
        'lease = "1s"\nlaese = 3\n[budget]\nbytes = true\n[defaults]\ncompact = 1\nafter = "db.b"\n'
        '[[tables]]\ncompat = true\n[[tables]]\nmatch = 3\nexpire = "yes"\n'
        '[[tables]]\nmatch = "db.b"\nafter = "db.a"\n[[tables]]\nmatch = "db.a"\ncluster-strategy = "no"\n'
    )
    with pytest.raises(InvalidOptionError) as raised:
        parse_policy(text, "fleet.toml")
    errors = raised.value.context["errors"]
    assert isinstance(errors, list)
    found = [(one["line"], one["message"].split(" must ")[0].split(";")[0]) for one in errors]
    assert found == [
        (1, "lease"),
        (2, "unknown key 'laese'"),
        (4, "bytes"),
        (5, "tables wait for each other: db.a after db.b (line 5), db.b after db.a (line 13)"),
        (6, "compact"),
        (8, 'a rule needs match, such as match = ["db.*"]'),
        (9, "unknown key 'compat'"),
        (11, "match"),
        (12, "expire"),
        (18, "cluster-strategy"),
    ]
    assert raised.value.message == "; ".join(f"fleet.toml:{one['line']}: {one['message']}" for one in errors)


def rules(*after: tuple[str, str]) -> str:
    """A policy of rules of three lines."""
    return "".join(f'[[tables]]\nmatch = "{match}"\nafter = {first}\n' for match, first in after)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        (rules(("db.a", '"db.b"'), ("db.b", '"db.a"')), "db.a after db.b (line 1), db.b after db.a (line 4)"),
        (
            rules(("db.a", '"db.b"'), ("db.b", '["x.y", "db.c"]'), ("db.c", '"db.a"')),
            "db.a after db.b (line 1), db.b after db.c (line 4), db.c after db.a (line 7)",
        ),
        (
            rules(("raw.*", '"mart.*"'), ("mart.*", '"raw.*"')),
            "mart.* after raw.* (line 4), raw.* after mart.* (line 1)",
        ),
        (
            rules(("db.*", '"db.*"'), ("db.a", '"db.b"'), ("db.b", '"db.c"')),
            "db.a after db.b (line 4), db.b after db.c (line 7), db.c after db.a (line 1)",
        ),
    ],
)
def test_rules_whose_tables_wait_for_each_other_are_refused(text: str, steps: str) -> None:
    with pytest.raises(InvalidOptionError) as raised:
        parse_policy(text, "fleet.toml")
    assert re.fullmatch(rf"fleet.toml:\d+: tables wait for each other: {re.escape(steps)}.*", raised.value.message)


@pytest.mark.parametrize(
    "text",
    [
        rules(("db.a", '"db.b"'), ("db.b", '"db.c"')),
        rules(("db.a", '"db.b"'), ("db.b", '"db.a"'), ("db.b", "[]")),  # a later rule takes it back
        '[defaults]\nafter = "raw.*"\n',  # one table of raw waits for nothing
        '[defaults]\nafter = "raw.*"\n[[tables]]\nmatch = "raw.events"\ncompact = false\n',
        rules(("db.a", '"db.b"'), ("db.b", '"db.a"')) + "maintain = false\n",  # no work of it is waited for
    ],
)
def test_rules_that_may_be_followed_are_not_refused(text: str) -> None:
    assert parse_policy(text).rules


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match=r"cannot read the policy .*No such file"):
        read_policy(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(InvalidOptionError, match="not UTF-8"):
        read_policy(tmp_path / "bytes.toml")


@pytest.mark.parametrize(
    ("window", "inside", "outside"),
    [
        ("22:00-06:00", ["2024-03-04T22:00", "2024-03-05T05:59"], ["2024-03-04T21:59", "2024-03-05T06:00"]),
        ("08:00-09:00", ["2024-03-04T08:30"], ["2024-03-04T09:00"]),
        ("fri 22:00-02:00", ["2024-03-08T23:00", "2024-03-09T01:59"], ["2024-03-09T23:00", "2024-03-08T01:00"]),
        ("sat,sun 00:00-24:00", ["2024-03-09T00:00", "2024-03-10T23:59"], ["2024-03-11T00:00"]),
        ("sun-tue 10:00-11:00", ["2024-03-10T10:00", "2024-03-12T10:30"], ["2024-03-13T10:30"]),
    ],
)
def test_windows(window: str, inside: list[str], outside: list[str]) -> None:
    settings, _ = parse_policy(f'[defaults]\nwindows = "{window}"').settings("a.b")
    assert all(settings.in_window(datetime.fromisoformat(text).replace(tzinfo=UTC)) for text in inside)
    assert not any(settings.in_window(datetime.fromisoformat(text).replace(tzinfo=UTC)) for text in outside)


def test_windows_are_in_the_time_zone_of_the_policy() -> None:
    settings, _ = parse_policy('timezone = "Asia/Tokyo"\n[defaults]\nwindows = "01:00-02:00"').settings("a.b")
    assert settings.in_window(datetime(2024, 3, 4, 16, 30, tzinfo=UTC))
    assert not settings.in_window(datetime(2024, 3, 4, 1, 30, tzinfo=UTC))
    assert Settings().in_window(datetime(2024, 3, 4, tzinfo=UTC))
