"""What the files of a run folder must look like, whichever trainer wrote them. Standard library only."""
import json
import os
import re
import socket
import time

SPEED_LINE = re.compile(r"s:(\d+) ms:(\d+\.\d{3}) tps:(\d+)\n")


def events_of(folder):
    """The lines of run.jsonl; the strictest reader of JSON that there is here must read them: no key twice, no NaN,
    UTF-8."""
    def unique(pairs):
        assert len(dict(pairs)) == len(pairs), pairs
        return dict(pairs)

    with open(os.path.join(folder, "run.jsonl"), encoding="utf-8") as file:
        text = file.read()
    assert text.endswith("\n"), text
    return [json.loads(line, object_pairs_hook=unique, parse_constant=int) for line in text.splitlines()]


def record_of(folder):
    """The last start of run.jsonl, with its end if it has one, and all starts with theirs."""
    starts = []
    for event in events_of(folder):
        if event["event"] == "start":
            starts.append(event)
        else:
            assert event["event"] == "end" and "end" not in starts[-1], event
            starts[-1]["end"] = event
    return dict(starts[-1], starts=starts)


def check_machine(record, ranks):
    hardware = record["hardware"]
    assert hardware["host"] == socket.gethostname() and hardware["cores"] == os.cpu_count(), hardware
    assert hardware["memory_bytes"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), hardware
    assert hardware["ranks"] == ranks and hardware.get("machines", 1) == 1, hardware
    versions = record["versions"]
    assert re.search(r"\d+\.\d+\.\d+", versions["compiler"]), versions
    assert re.fullmatch("([0-9a-f]{40}(-dirty)?)?", record["revision"])  # empty in a copy of the source without .git


def check_options(record, given, help_text):
    """Every option of --help is there as a text, with its default or the value given."""
    options = record["options"]
    names = re.findall(r"^  (?:-\w+, )*--([a-z0-9-]+)", help_text, re.M)
    settled = {"computed-in", "arithmetic", "attention-by"} & set(options)
    assert set(options) == set(names) - {"help", "version", "process-rank"} | settled, set(options) ^ set(names)
    for name, value in given.items():
        assert options[name] == str(value), (name, options[name], value)


def check_times(texts, since):
    """All within the run, and in order; a second of rounding."""
    for text in texts:
        seconds = time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")) - time.timezone
        assert since - 2 <= seconds <= time.time() + 2, (text, since)
    assert sorted(texts) == list(texts), texts


def speed_of(folder):
    """The lines of speed.log as (step, ms, tokens a second). Of two lines for a step the later one counts. The steps
    follow one another."""
    with open(os.path.join(folder, "speed.log")) as file:
        lines = file.readlines()
    matches = [SPEED_LINE.fullmatch(line) for line in lines]
    assert all(matches), lines
    rows = sorted({int(m[1]): (int(m[1]), float(m[2]), int(m[3])) for m in matches}.values())
    assert [row[0] for row in rows] == list(range(1, len(rows) + 1)), rows
    return rows
