"""A reader returns every whole record and says exactly what it could not read."""

import os
import resource
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.errors import JournalMissing, UnsafeEntryError
from spanfold.journal import _decode, _reader
from spanfold.journal._decode import Start, decode_line
from spanfold.journal._reader import Damage, JournalRead, Tail, journal_files, merged, read_journal
from spanfold.model import Event, Record, Span
from tests.journal.samples import CHILD, OWNER, START, TRACE, File, event, line, small_run, span, started
from tests.journal.steps import steps


def read_all(run_dir: Path) -> tuple[list[Record], JournalRead]:
    read = read_journal(run_dir)
    return list(read.records), read


def ids(records: list[Record]) -> list[str]:
    return [record.span_id for record in records]


def one_file(tmp_path: Path, data: bytes) -> Path:
    file = File(tmp_path / "journal")
    file.path.write_bytes(data)
    return file.path


def a_span(number: int, **more: object) -> bytes:
    return line(span(f"{number:016x}", **more), number, "0" * 64)  # type: ignore[arg-type]  # passed through


# -- files


def test_journal_files_are_those_of_the_journal_folder_by_name(tmp_path: Path) -> None:
    owner, child = small_run(tmp_path)
    (tmp_path / "journal" / "notes.txt").write_text("x")
    (tmp_path / "journal" / f"{OWNER}.otlp.jsonl.torn-12").write_text("x")
    (tmp_path / "journal" / "folder.otlp.jsonl").mkdir()

    assert journal_files(tmp_path) == [owner.path, child.path]
    assert journal_files(tmp_path / "journal") == [owner.path, child.path]


def test_a_folder_without_a_journal_has_no_files_and_cannot_be_read(tmp_path: Path) -> None:
    assert journal_files(tmp_path) == []
    assert journal_files(tmp_path / "missing") == []
    with pytest.raises(JournalMissing):
        read_journal(tmp_path)


def test_a_journal_folder_or_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    small_run(tmp_path / "real")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "journal").symlink_to(tmp_path / "real" / "journal")
    with pytest.raises(UnsafeEntryError):
        journal_files(tmp_path / "run")

    (tmp_path / "other" / "journal").mkdir(parents=True)
    (tmp_path / "other" / "journal" / "x.otlp.jsonl").symlink_to(tmp_path / "real" / "journal" / f"{OWNER}.otlp.jsonl")
    with pytest.raises(UnsafeEntryError):
        read_all(tmp_path / "other")


def test_a_run_directory_may_be_reached_through_a_link(tmp_path: Path) -> None:
    small_run(tmp_path / "real")
    (tmp_path / "latest").symlink_to(tmp_path / "real")
    (tmp_path / "lines").symlink_to(tmp_path / "real" / "journal")

    assert (
        ids(read_all(tmp_path / "latest")[0])
        == ids(read_all(tmp_path / "lines")[0])
        == ids(read_all(tmp_path / "real")[0])
    )


# -- whole records


def test_a_record_is_read_with_everything_it_was_written_with(tmp_path: Path) -> None:
    record = span(
        "00000000000000a1",
        "00000000000000a0",
        name="größe\u2028",
        kind=3,
        error="no \0",
        spanfold__kind="tool",
        spanfold__ok=True,
        spanfold__x=1.5,
        spanfold__n=-(2**63),
    )
    record["links"] = [{"traceId": "ab" * 16, "spanId": "cd" * 8, "attributes": []}]
    record["events"] = [{"timeUnixNano": "5", "name": "e", "attributes": []}]
    path = one_file(tmp_path, line(record, 7, "0" * 64))

    (found,) = read_all(tmp_path)[0]

    assert isinstance(found, Span)
    assert (found.trace_id, found.span_id, found.parent_span_id) == (TRACE, "00000000000000a1", "00000000000000a0")
    assert (found.name, found.otel_kind, found.status_code, found.status_message) == ("größe\u2028", 3, 2, "no \0")
    assert (found.start_ns, found.end_ns) == (START, START + 1_000_000_000)
    assert dict(found.attributes) == {
        "spanfold.kind": "tool",
        "spanfold.ok": True,
        "spanfold.x": 1.5,
        "spanfold.n": -(2**63),
    }
    assert (found.scope.name, found.scope.version, dict(found.scope.attributes)) == ("spanfold", "0.1.0", {})
    assert dict(found.resource) == {"service.name": "sample", "process.pid": 4242}
    assert [(link.trace_id, link.span_id) for link in found.links] == [("ab" * 16, "cd" * 8)]
    assert [(e.name, e.time_ns, e.span_id) for e in found.events] == [("e", 5, found.span_id)]
    position = found.position
    assert position is not None
    assert (position.path, position.offset, position.length, position.seq) == (path, 0, path.stat().st_size, 7)


def test_lines_of_one_writer_read_the_same_alone_and_after_others(tmp_path: Path) -> None:
    """What the lines of a writer share is decoded once; that must not show."""
    lines = [a_span(n, spanfold__n=n) for n in range(1, 4)]
    lines += [line(event("e", "00000000000000a1", spanfold__n=n), n, "0" * 64) for n in range(4, 6)]
    lines.append(line(span("0000000000000009"), 6, "0" * 64, resource={"service.name": "another"}))
    lines.append(line(span("000000000000000a")))
    one_file(tmp_path, b"".join(lines))
    together = read_all(tmp_path)[0]

    for number, data in enumerate(lines):
        one_file(tmp_path / str(number), data)
        (alone,) = read_all(tmp_path / str(number))[0]
        other = together[number]
        assert type(alone) is type(other)
        for name in ("trace_id", "span_id", "name", "attributes", "scope", "resource", "time_ns"):
            assert getattr(alone, name) == getattr(other, name)


@given(digits=st.integers(1, 19), data=st.data())
def test_a_start_is_read_in_brief_however_long_the_number_of_its_line_is(
    tmp_path_factory: pytest.TempPathFactory, digits: int, data: st.DataObject
) -> None:
    """A long run must not be slower to fold than a short one."""
    number = data.draw(st.integers(10 ** (digits - 1), min(10**digits - 1, 2**63 - 1)))
    lines = [
        line(started("00000000000000a0", kind="model_call", name="first"), 1, "0" * 64),
        line(started("00000000000000a1", kind="model_call", name="second"), number, "0" * 64),
        line(span("00000000000000a1"), number + 1, "0" * 64),
    ]
    tail = Tail(one_file(tmp_path_factory.mktemp("brief"), b"".join(lines)))

    _, brief, _ = tail.read_briefly(1 << 20)

    assert isinstance(brief, Start)
    assert brief.event() == next(decode_line(lines[1]))


@pytest.mark.case("C-038")
@given(data=st.data())
def test_a_journal_cut_at_any_byte_reads_as_a_prefix(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    whole = b"".join(a_span(n, name="ä" * n) for n in range(1, 6))
    cut = data.draw(st.integers(0, len(whole)))
    path = one_file(run_dir, whole[:cut])

    records, read = read_all(run_dir)

    kept = whole[:cut].count(b"\n")
    assert ids(records) == [f"{n:016x}" for n in range(1, kept + 1)]
    end = whole[:cut].rfind(b"\n") + 1
    assert [(d.path, d.offset, d.length, d.kind) for d in read.damage] == (
        [(path, end, cut - end, "torn")] if cut > end else []
    )


@pytest.mark.slow
@pytest.mark.case("C-038")
def test_a_record_glued_to_a_torn_one_is_read_and_the_torn_one_reported(tmp_path: Path) -> None:
    first, second, third = a_span(1), a_span(2), a_span(3)
    for cut in range(1, len(second) - 1):
        path = one_file(tmp_path, first + second[:cut] + third)
        records, read = read_all(tmp_path)
        assert ids(records) == ["0000000000000001", "0000000000000003"], cut
        assert [(d.path, d.offset, d.length) for d in read.damage] == [(path, len(first), cut)]
    one_file(tmp_path, first + second[:-1] + third)
    records, read = read_all(tmp_path)
    assert (ids(records), read.damage) == (["0000000000000001", "0000000000000002", "0000000000000003"], [])


@pytest.mark.case("C-050")
def test_a_nul_gap_and_a_broken_line_cost_only_themselves(tmp_path: Path) -> None:
    first, second, third = a_span(1), a_span(2), a_span(3)
    broken = second[:200] + b"\n"
    path = one_file(tmp_path, first + bytes(200_000) + second + broken + bytes(10) + b"\n" + third)

    records, read = read_all(tmp_path)

    assert ids(records) == ["0000000000000001", "0000000000000002", "0000000000000003"]
    at = len(first) + 200_000 + len(second)
    assert read.damage == [
        Damage(path, len(first), 200_000, "malformed", "NUL bytes"),
        Damage(path, at, len(broken), "malformed", "bytes that are not JSON"),
        Damage(path, at + len(broken), 10, "malformed", "NUL bytes"),
    ]
    position = records[1].position
    assert position is not None
    assert path.read_bytes()[position.offset : position.offset + position.length] == second


def test_carriage_returns_and_blank_lines_are_no_damage(tmp_path: Path) -> None:
    one_file(tmp_path, b"\n\r\n" + a_span(1).replace(b"\n", b"\r\n") + b" \t\n" + a_span(2))

    records, read = read_all(tmp_path)

    assert (ids(records), read.damage) == (["0000000000000001", "0000000000000002"], [])


def test_a_byte_order_mark_is_reported_and_the_line_behind_it_read(tmp_path: Path) -> None:
    path = one_file(tmp_path, b"\xef\xbb\xbf" + a_span(1) + a_span(2))

    records, read = read_all(tmp_path)

    assert ids(records) == ["0000000000000001", "0000000000000002"]
    assert read.damage == [Damage(path, 0, 3, "foreign", "a byte order mark")]


def test_json_that_is_no_request_is_foreign(tmp_path: Path) -> None:
    data = b'{"a":1}\n'
    path = one_file(tmp_path, data * 1000 + a_span(1))

    records, read = read_all(tmp_path)

    assert ids(records) == ["0000000000000001"]
    assert read.damage == [Damage(path, 0, len(data) * 1000, "foreign", "JSON that is not an OTLP export request")]


@pytest.mark.parametrize(
    "change",
    [
        ('"traceId":"0af7651916cd43dd8448eb211c80319c"', '"traceId":"CvdlGRbNQ92ESOshHIAxnA=="'),
        ('"traceId":"0af7651916cd43dd8448eb211c80319c"', '"traceId":null'),
        ('"spanId":"00000000000000a1"', '"spanId":12'),
        ('"name":"work"', '"name":{}'),
        ('"startTimeUnixNano":"', '"startTimeUnixNano":"x'),
        ('"attributes":[{"key":"spanfold.kind"', '"attributes":[{"kee":"spanfold.kind"'),
        ('{"stringValue":"tool"}', '{"stringValue":[]}'),
        ('{"stringValue":"tool"}', '{"intValue":"tool"}'),
        ('{"stringValue":"tool"}', '{"bytesValue":"%"}'),
        ('"resourceSpans":[', '"resourceSpans":[3,'),
    ],
)
def test_a_request_with_a_wrong_type_is_damage_and_not_an_exception(change: tuple[str, str], tmp_path: Path) -> None:
    good = line(span("00000000000000a1", spanfold__kind="tool")).decode()
    assert change[0] in good
    one_file(tmp_path, good.replace(*change, 1).encode() + a_span(2))

    records, read = read_all(tmp_path)

    assert ids(records) == ["0000000000000002"]
    assert [d.kind for d in read.damage] == ["foreign"]
    assert "CvdlGRb" not in read.damage[0].found


def test_json_null_stands_for_an_absent_field(tmp_path: Path) -> None:
    text = (
        line(span("00000000000000a1"))
        .decode()
        .replace('"attributes":[]', '"attributes":null,"status":null,"links":null')
    )
    one_file(tmp_path, text.replace('"scope":{', '"schemaUrl":null,"scope":{').encode())

    assert ids(read_all(tmp_path)[0]) == ["00000000000000a1"]


def test_numbers_enums_and_ids_are_read_in_every_form_otlp_allows(tmp_path: Path) -> None:
    text = line(span("00000000000000a1", kind=3, error="bad", spanfold__n=5)).decode()
    for old, new in (
        ('"kind":3', '"kind":"SPAN_KIND_CLIENT"'),
        ('"code":2', '"code":"STATUS_CODE_ERROR"'),
        ('"intValue":"5"', '"intValue":5'),
        (f'"startTimeUnixNano":"{START}"', f'"startTimeUnixNano":{START}'),
        (TRACE, TRACE.upper()),
    ):
        assert old in text
        text = text.replace(old, new)
    one_file(tmp_path, text.encode())

    (found,) = read_all(tmp_path)[0]

    assert isinstance(found, Span)
    assert (found.trace_id, found.otel_kind, found.status_code, found.start_ns) == (TRACE, 3, 2, START)
    assert found.attributes["spanfold.n"] == 5


def test_a_line_of_20_megabytes_is_read(tmp_path: Path) -> None:
    big = line(span("0000000000000002", spanfold__text="x" * 20_000_000), 2, "0" * 64)
    one_file(tmp_path, a_span(1) + big + a_span(3))

    records, read = read_all(tmp_path)

    assert ids(records) == ["0000000000000001", "0000000000000002", "0000000000000003"]
    assert len(records[1].attributes["spanfold.text"]) == 20_000_000
    assert read.damage == []


@pytest.mark.slow
def test_a_line_longer_than_any_record_is_reported_and_not_kept_in_memory(tmp_path: Path) -> None:
    path = one_file(tmp_path, a_span(1))
    with path.open("ab") as file:
        file.truncate(file.tell() + _reader.MAX_LINE_BYTES + 1000)  # sparse: no bytes are written
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + a_span(2))

    records, read = read_all(tmp_path)

    assert ids(records) == ["0000000000000001", "0000000000000002"]
    assert [(d.offset, d.length, d.kind) for d in read.damage] == [
        (len(a_span(1)), _reader.MAX_LINE_BYTES + 1001, "malformed")
    ]


def test_lines_of_hundreds_of_processes_in_turn_are_read_in_as_few_steps_as_those_of_one() -> None:
    lines = [line(event("a"), 1, "0" * 64, resource={"process.pid": pid}) for pid in range(300)]

    def read(which: list[bytes]) -> None:
        for one in which:
            list(decode_line(one))

    read(lines)  # what they have around their records is learnt

    assert steps(partial(read, lines)) == steps(partial(read, lines[:1] * 300))


def test_what_is_remembered_of_the_lines_of_processes_is_bounded() -> None:
    for pid in range(200):
        list(decode_line(line(event("a"), 1, "0" * 64, resource={"process.pid": pid, "about": "x" * 20_000})))

    assert sum(map(len, _decode._frames)) < 1_100_000  # pyright: ignore[reportPrivateUsage]  # what grows


# -- order and duplicates


def test_files_are_merged_by_time_and_each_keeps_its_own_order(tmp_path: Path) -> None:
    one, two = File(tmp_path / "journal", OWNER), File(tmp_path / "journal", CHILD)
    # The clock of the first writer steps back after its second line.
    one.add(*(span(f"{n:016x}", end=START + t) for n, t in ((1, 10), (2, 50), (3, 20), (4, 60))))
    two.add(*(span(f"{n:016x}", end=START + t) for n, t in ((5, 5), (6, 50), (7, 55))))

    assert ids(list(merged(tmp_path))) == [f"{n:016x}" for n in (5, 1, 2, 3, 6, 7, 4)]


@pytest.mark.case("C-045")
def test_a_span_that_comes_twice_is_read_once_and_counted(tmp_path: Path) -> None:
    owner, _ = small_run(tmp_path)
    copy = owner.path.with_name(f"z{owner.path.name}")
    copy.write_bytes(owner.path.read_bytes())

    records, read = read_all(tmp_path)

    spans = Counter(r.span_id for r in records if isinstance(r, Span))
    assert set(spans.values()) == {1}
    assert read.duplicates == 3


def test_the_same_span_id_in_two_traces_is_two_spans(tmp_path: Path) -> None:
    one_file(tmp_path, line(span("00000000000000a1")) + line(span("00000000000000a1", trace_id="ab" * 16)))

    assert len(read_all(tmp_path)[0]) == 2


def test_events_of_one_span_are_never_duplicates(tmp_path: Path) -> None:
    one_file(tmp_path, line(event("a", "00000000000000a1")) * 3)

    records, read = read_all(tmp_path)

    assert [type(r) for r in records] == [Event] * 3
    assert read.duplicates == 0


@given(st.lists(st.integers(1, 2**64 - 1), max_size=300), st.lists(st.integers(1, 40), max_size=300))
def test_every_repeated_span_is_found_whatever_the_ids(some: list[int], often: list[int]) -> None:
    numbers = some + often
    seen = _reader._SpanIds()  # pyright: ignore[reportPrivateUsage]  # a table of its own, compared with a set

    added = [seen.add(f"{number:016x}") for number in numbers]

    assert added == [number not in numbers[:index] for index, number in enumerate(numbers)]


def test_ids_that_differ_in_few_bits_take_as_many_steps_as_others() -> None:
    def add(shift: int) -> None:
        seen = _reader._SpanIds()  # pyright: ignore[reportPrivateUsage]  # as above
        for number in range(1, 2_001):
            seen.add(f"{number << shift:016x}")

    assert max(steps(partial(add, shift)) for shift in (8, 24, 40, 53)) < 2 * steps(partial(add, 0))


@pytest.mark.slow
@pytest.mark.case("C-049")
def test_a_thousand_files_are_merged_with_few_descriptors(tmp_path: Path) -> None:
    for number in range(1000):
        one = File(tmp_path / "journal", f"20260301T120000Z-{number}-00000000")
        one.add(span(f"{number + 1:016x}", end=START + (number * 7919) % 1000))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        records = list(merged(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert len(records) == 1000
    assert [r.time_ns for r in records] == sorted(r.time_ns for r in records)


# -- following a file that grows


def test_a_tail_reads_only_whole_lines_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    data = a_span(1) + a_span(2) + a_span(3)
    path = one_file(tmp_path, b"")
    tail = Tail(path)
    seen: list[Record] = []
    for at in range(0, len(data), 100):
        with path.open("ab") as file:
            file.write(data[at : at + 100])
        seen += tail.read()
        assert tail.offset == data[: at + 100].rfind(b"\n") + 1

    assert ids(seen) == ["0000000000000001", "0000000000000002", "0000000000000003"]
    assert (tail.damage, tail.torn()) == ([], None)


def test_a_tail_says_what_is_not_a_whole_line_yet(tmp_path: Path) -> None:
    path = one_file(tmp_path, a_span(1) + b"abc")
    tail = Tail(path)
    list(tail.read())

    assert tail.torn() == Damage(path, len(a_span(1)), 3, "torn", "3 bytes without an end of line")
    assert tail.damage == []


def test_lines_that_came_after_the_reading_are_not_called_torn(tmp_path: Path) -> None:
    path = one_file(tmp_path, a_span(1))
    tail = Tail(path)
    list(tail.read())
    with path.open("ab") as file:
        file.write(a_span(2) + a_span(3))

    assert tail.torn() is None
    assert ids(list(tail.read())) == ["0000000000000002", "0000000000000003"]


def test_lines_behind_those_that_were_asked_for_are_not_called_torn(tmp_path: Path) -> None:
    tail = Tail(one_file(tmp_path, a_span(1) + a_span(2) + b"abc"))
    list(tail.read(max_bytes=1))

    assert tail.torn() is None


def test_a_tail_whose_caller_stops_early_goes_on_behind_the_last_record_it_gave(tmp_path: Path) -> None:
    path = one_file(tmp_path, b"".join(a_span(n) for n in range(1, 8)))
    tail = Tail(path)
    seen: list[Record] = []
    while (record := next(iter(tail.read()), None)) is not None:
        seen.append(record)

    assert ids(seen) == [f"{n:016x}" for n in range(1, 8)]


def test_a_tail_reads_at_most_one_line_more_than_it_was_asked(tmp_path: Path) -> None:
    path = one_file(tmp_path, b"".join(a_span(n) for n in range(1, 8)))
    length = len(a_span(1))
    tail = Tail(path)

    assert len(list(tail.read(max_bytes=length + 1))) == 2
    assert tail.offset == 2 * length
    assert len(list(tail.read(max_bytes=1))) == 1
    assert len(list(tail.read())) == 4


@given(block=st.integers(1, 700))
def test_the_size_of_a_block_does_not_matter(tmp_path_factory: pytest.TempPathFactory, block: int) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    path = one_file(run_dir, a_span(1) + b"\0\0" + a_span(2) + b"\n{\n" + a_span(3) + b"torn")
    tail, slow = Tail(path), Tail(path, block_bytes=block)

    assert [r.position for r in slow.read()] == [r.position for r in tail.read()]
    assert (slow.damage, slow.offset, slow.torn()) == (tail.damage, tail.offset, tail.torn())


def test_a_tail_reports_a_file_that_was_cut_under_it(tmp_path: Path) -> None:
    path = one_file(tmp_path, a_span(1) + a_span(2))
    tail = Tail(path)
    list(tail.read())
    os.truncate(path, 100)

    assert list(tail.read()) == []
    (damage,) = tail.damage
    assert (damage.offset, damage.length, damage.kind) == (100, len(a_span(1) + a_span(2)) - 100, "torn")
    assert tail.offset == 100


def test_a_tail_can_start_at_a_line(tmp_path: Path) -> None:
    path = one_file(tmp_path, a_span(1) + a_span(2))

    assert ids(list(Tail(path, len(a_span(1))).read())) == ["0000000000000002"]


@given(st.binary(max_size=400))
def test_arbitrary_bytes_never_raise_and_every_byte_is_accounted_for(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes
) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    path = one_file(run_dir, a_span(1) + noise + b"\n" + a_span(2))

    records, read = read_all(run_dir)

    assert ids(records) == ["0000000000000001", "0000000000000002"]
    covered = {at for d in read.damage for at in range(d.offset, d.offset + d.length)}
    data = path.read_bytes()
    missing = [
        at
        for at in range(len(a_span(1)), len(a_span(1)) + len(noise))
        if at not in covered and data[at] not in b" \t\r\n\v\f"
    ]
    assert not missing


def test_reading_without_starts_leaves_out_the_announcements_below_the_run_and_nothing_else(tmp_path: Path) -> None:
    import spanfold  # the recorder's own lines are what can be told from others without decoding them

    spanfold.configure(otlp=False, langfuse=False)
    with spanfold.run("read", dir=tmp_path / "run"):
        for cycle in range(3):
            with spanfold.stage("M1", cycle=cycle), spanfold.model_call("m") as call:
                call.event("spanfold.span.started", kind="run")
                spanfold.score("accuracy", 1)
    spanfold.shutdown()
    (path,) = journal_files(tmp_path / "run")

    every, rest = Tail(path), Tail(path)
    wanted = [
        record
        for record in every.read()
        if not (
            isinstance(record, Event)
            and record.name == "spanfold.span.started"
            and record.attributes.get("spanfold.kind") in ("stage", "model_call")
        )
    ]

    assert list(rest.read(starts=False)) == wanted
    assert rest.offset == every.offset
