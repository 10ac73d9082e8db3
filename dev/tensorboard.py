#!/usr/bin/env python3
"""Writes what training runs have logged as TensorBoard's event files: losses, accuracies, rate, norm, speed.

    dev/tensorboard.py log124M other           into tb/log124M and tb/other
    dev/tensorboard.py log124M --follow        goes on with what the run logs, until Ctrl-C
    tensorboard --logdir tb

A run is its folder (--out-dir of the trainers, or a log folder of llm.c's) or a log file. A point has the step of
main.log and, where speed.log says it, the run's first start plus the time of training before the step. A run that is
written again gets a new file for its old one. Needs the tensorboard package.
"""
import argparse
import calendar
import io
import math
import os
import re
import signal
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import guard  # noqa: E402
import run_logs  # noqa: E402
from run_logs import LogError  # noqa: E402

sys.path[:] = [place for place in sys.path if os.path.abspath(place) != HERE]  # this file has the package's name
INSTALL = "needs the tensorboard package: python3 -m pip install tensorboard"
OURS = re.compile(r"events\.out\.tfevents\.\d+\.gpt2c")


# ---- Points ----


def began(run):
    """When the run began, in seconds since 1970: by run.json, else by the time of its log."""
    starts = run.part("starts", kind=list) or [{}]
    try:
        return calendar.timegm(time.strptime(starts[0]["time"], "%Y-%m-%dT%H:%M:%SZ"))
    except (KeyError, TypeError, ValueError, AttributeError):
        log = run_logs.find_main_log(run.path)
        return os.stat(log).st_mtime - (run.total_seconds() or 0.0)


def points_of(run):
    """Every point of a run as (step, tag, value, seconds since 1970): in the order of the steps, and within a step in
    that of main.log."""
    series = [("loss/val", run.val, "loss"), ("accuracy/hellaswag", run.hellaswag, "accuracy"),
              ("accuracy/mmlu", run.mmlu, "accuracy"), ("loss/train", run.train, "loss"),
              ("optimizer/learning_rate", run.train, "lr"), ("optimizer/gradient_norm", run.train, "norm"),
              ("speed/tokens_per_second", run.speed, "tps")]
    found = [(step, place, value) for place, (_, part, name) in enumerate(series)
             for step, value in zip(part.steps, getattr(part, name)) if value is not None]
    steps = sorted({step for step, _, _ in found})
    start, hours = began(run), dict(zip(steps, run.hours(steps)))
    return [(step, series[place][0], value, start + 3600 * (hours[step] or 0.0))
            for step, place, value in sorted(found, key=lambda point: point[:2])]


def growth(written, points):
    """What a file that holds `written` needs to hold `points`: the step from which its points are void (None: none
    are), and the points to add. A resumed run takes steps again."""
    def what(point):
        return point[0], point[1], str(point[2])  # as text NaN is like NaN

    same = 0
    while same < min(len(written), len(points)) and what(written[same]) == what(points[same]):
        same += 1
    if same == len(written):
        return None, points[same:]
    void = min(point[0] for point in (*written[same:same + 1], *points[same:same + 1]))
    return void, [point for point in points if point[0] >= void]


# ---- Event files ----


def import_tensorboard():
    """The package's events and its writer of records. Raises LogError where it is missing."""
    global Event, SessionLog, Summary, RecordWriter
    try:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise LogError(f"{INSTALL} ({error})") from None


def records(events):
    out = io.BytesIO()
    writer = RecordWriter(out)
    for event in events:
        writer.write(event.SerializeToString())
    return out.getvalue()


def events_of(void, points):
    """An event of a new session tells TensorBoard that the points from a step on are void."""
    if void is not None:
        start = SessionLog(status=SessionLog.START)
        yield Event(wall_time=points[0][3] if points else 0.0, step=void, session_log=start)
    for step, tag, value, seconds in points:
        yield Event(wall_time=seconds, step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)]))


class EventFile:
    """The event file of a run. This program writes its whole file first, and then adds to it."""

    def __init__(self, folder):
        self.folder, self.path, self.written = folder, None, []

    def take(self, points):
        """Brings the file up to these points."""
        if self.path is None or not os.path.exists(self.path):
            self.begin(points)
        else:
            void, new = growth(self.written, points)
            if void is not None or new:
                with guard.open_file(self.path, "ab") as file:
                    file.write(records(events_of(void, new)))
        self.written = points

    def begin(self, points):
        """Writes a new file, and removes the older ones. TensorBoard may have read them: the new file voids it."""
        os.close(guard.own_folder(self.folder))
        name = f"events.out.tfevents.{int(time.time()):010d}.gpt2c"
        self.path = os.path.join(self.folder, name)
        with guard.new_file(self.path) as file:
            file.write(records([Event(wall_time=points[0][3] if points else 0.0, file_version="brain.Event:2"),
                                *events_of(0, points)]))
        for old in os.listdir(self.folder):
            if OURS.fullmatch(old) and old != name:
                os.unlink(os.path.join(self.folder, old))


# ---- All of it ----


def read_points(path, noted):
    """The points of a run; says what its logs are to be asked for, once."""
    run = run_logs.read_run(path)
    for note in run.notes:
        if note not in noted:
            print(f"tensorboard.py: {guard.printable(note)}", file=sys.stderr)
        noted.add(note)
    return points_of(run)


def write_once(files, noted):
    """Writes all runs, or none if one cannot be read."""
    for path, points in [(path, read_points(path, noted)) for path in files]:
        files[path].take(points)
        last = f", up to step {points[-1][0]:,}" if points else ""
        print(guard.printable(f"{files[path].folder}: {len(points):,} points{last}"))


def follow(files, noted, every):
    """Adds what the logs have gained, until a signal ends it. A run that is not there yet is waited for."""
    states = {}
    while True:
        for path, file in files.items():
            state = run_logs.fingerprint([path])
            if state == states.get(path):
                continue
            states[path] = state
            try:
                file.take(read_points(path, noted))
            except LogError as error:
                print(guard.printable(f"waiting: {error}"), flush=True)
        time.sleep(every)


def seconds(text):
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.1 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"'{text}': expected are seconds, 0.1 to 86400")
    return value


def parse_options(arguments):
    parser = guard.Parser(__doc__, prog="tensorboard.py")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, or its main.log")
    parser.add_argument("--out", default="tb", metavar="DIR", help="the folder of the event files, a folder a run (tb)")
    parser.add_argument("--follow", action="store_true", help="go on with what the runs log, until Ctrl-C")
    parser.add_argument("--every", type=seconds, default=5.0, metavar="SECONDS",
                        help="how often --follow looks at the logs (5)")
    options = parser.parse_args(arguments)
    if len({os.path.realpath(path) for path in options.runs}) < len(options.runs):
        parser.error("a run is given twice; give each once")
    return options


def main(arguments=None):
    options = parse_options(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    names = map(guard.printable, run_logs.labels(options.runs))
    files = {path: EventFile(os.path.join(options.out, name)) for path, name in zip(options.runs, names)}
    noted = set()
    try:
        import_tensorboard()
        if not options.follow:
            write_once(files, noted)
        print(f"To see them: tensorboard --logdir {guard.printable(options.out)}", flush=True)
        if options.follow:
            follow(files, noted, options.every)
    except LogError as error:
        print(guard.printable(f"tensorboard.py: {error}"), file=sys.stderr)
        return 1
    except OSError as error:
        print(guard.printable(f"tensorboard.py: {error.filename or 'standard output'}: could not be written: "
                              f"{error.strerror}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    guard.screens("stdout", "stderr", errors="backslashreplace")  # a run's name holds letters of every kind
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
