"""Runs that are interrupted, killed, damaged and resumed: the end must be the same, bit for bit.

Each test compares with an uninterrupted run of the same options: the hash of the weights it prints, and main.log.
"""
import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import time

PROGRAM = os.environ.get("TRAIN_GPT2", "./train_gpt2")
FOLDER = tempfile.mkdtemp(prefix="test_resume.")
ENVIRONMENT = dict(os.environ, OMP_WAIT_POLICY="passive", KMP_BLOCKTIME="0")
STEPS = 12
# Two shards of unequal size, an epoch that ends within a step, accumulation, outliers skipped: all of it at once.
BASE = ["--layers", "2", "--heads", "2", "--channels", "32", "--context", "32", "--vocab", "300", "--seq-len", "16",
        "--batch-size", "2", "--total-batch", "64", "--steps", str(STEPS), "--lr", "3e-3", "--schedule", "cosine",
        "--final-lr-frac", "0.1", "--warmup", "3", "--weight-decay", "0.1", "--shuffle", "--skip-loss-z", "4",
        "--skip-grad-z", "4", "--val-every", "5", "--val-batches", "3", "--sample-every", "4", "--sample-tokens", "5",
        "--threads", "2"]


def write_shard(name, tokens):
    with open(name, "wb") as f:
        f.write(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253))
        f.write(struct.pack(f"<{len(tokens)}H", *tokens))


def make_data():
    generator = random.Random(1)
    for name, count in (("data_train_000.bin", 16 * 9 + 5), ("data_train_001.bin", 16 * 13 + 1), ("data_val.bin", 200)):
        write_shard(os.path.join(FOLDER, name), [generator.randrange(300) for _ in range(count)])
    BASE.extend(["--train-data", os.path.join(FOLDER, "data_train_*.bin"), "--val-data",
                 os.path.join(FOLDER, "data_val.bin")])


def run_folder(name):
    path = os.path.join(FOLDER, name)
    shutil.rmtree(path, ignore_errors=True)
    return path


def start(*arguments, **keywords):
    return subprocess.Popen([PROGRAM, *BASE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=ENVIRONMENT, **keywords)


def finish(process, status=0):
    out, err = process.communicate(timeout=120)
    assert process.returncode == status, f"status {process.returncode}, expected {status}\n{out}\n{err}"
    if status == 1:
        assert re.fullmatch(r"train_gpt2: [^\n]+\n", err), f"stderr is not one line: {err!r}"
    return out, err


def train(*arguments, status=0, **keywords):
    return finish(start(*arguments, **keywords), status)


def weights_hash(out):
    return re.search(r"^weights hash ([0-9a-f]{16})$", out, re.M).group(1)


def log_of(folder):
    with open(os.path.join(folder, "main.log")) as f:
        return f.read()


REFERENCE = {}  # the uninterrupted run: the hash of its weights, its log, its folder


def make_reference():
    folder = run_folder("reference")
    out, _ = train("--out-dir", folder)
    REFERENCE.update(hash=weights_hash(out), log=log_of(folder), folder=folder)


def check_same_end(out, folder, also_log=True):
    assert weights_hash(out) == REFERENCE["hash"], f"{weights_hash(out)} is not {REFERENCE['hash']}"
    if also_log:
        assert log_of(folder) == REFERENCE["log"], f"main.log differs:\n{log_of(folder)}\n{REFERENCE['log']}"


def checkpoints(folder):
    return sorted(int(name[6:14]) for name in os.listdir(folder) if re.fullmatch(r"state_\d{8}\.bin", name))


def remove_checkpoint(folder, step):
    for kind in ("model", "state"):
        os.remove(os.path.join(folder, f"{kind}_{step:08}.bin"))


def times_of(folder):
    """When each file of a folder was last written; the lock is taken by whoever looks."""
    names = set(os.listdir(folder)) - {".lock"}
    return {name: os.stat(os.path.join(folder, name)).st_mtime_ns for name in names}


def test_resume_from_every_step():
    """Straight, and resumed from each step of the run, across shard and epoch borders."""
    folder = run_folder("every")
    out, _ = train("--out-dir", folder, "--checkpoint-every", "1")
    check_same_end(out, folder)
    assert checkpoints(folder) == list(range(1, STEPS + 1)), checkpoints(folder)
    for step in range(STEPS - 1, 0, -1):
        remove_checkpoint(folder, step + 1)
        copy = run_folder("copy")
        shutil.copytree(folder, copy)
        out, _ = train("--out-dir", copy, "--resume")
        check_same_end(out, copy)


def test_resume_a_finished_run():
    """Resuming a run that is over changes nothing."""
    folder = run_folder("finished")
    shutil.copytree(REFERENCE["folder"], folder)
    out, _ = train("--out-dir", folder, "--resume")
    check_same_end(out, folder)


def test_resume_without_checkpoint():
    """--resume in an empty folder starts afresh: a script that always says --resume works from the first call on."""
    folder = run_folder("empty")
    out, _ = train("--out-dir", folder, "--resume")
    check_same_end(out, folder)


def test_resume_with_other_threads_and_memory():
    """What does not shape the run may change: threads, recompute, micro-batch."""
    folder = run_folder("other")
    train("--out-dir", folder, "--checkpoint-every", "6")
    remove_checkpoint(folder, STEPS)
    for arguments in (["--recompute", "3"], ["--recompute", "1"]):
        copy = run_folder("copy")
        shutil.copytree(folder, copy)
        out, _ = train("--out-dir", copy, "--resume", *arguments)
        check_same_end(out, copy)
    copy = run_folder("copy")
    shutil.copytree(folder, copy)
    index = BASE.index("--batch-size") + 1
    BASE[index] = "4"
    try:
        train("--out-dir", copy, "--resume")
    finally:
        BASE[index] = "2"
    for line, want in zip(log_of(copy).splitlines(), REFERENCE["log"].splitlines()):
        got, expected = (re.findall(r"(\w+):([\d.]+)", text) for text in (line, want))
        assert [key for key, _ in got] == [key for key, _ in expected], (line, want)
        for (_, a), (_, b) in zip(got, expected):
            assert abs(float(a) - float(b)) <= 2e-2, (line, want)  # the last printed digit of the norm may round


def test_changed_options_are_named():
    """Other options or data are refused by name, and taken with --allow-changes."""
    folder = run_folder("changed")
    train("--out-dir", folder, "--checkpoint-every", "6")
    remove_checkpoint(folder, STEPS)
    before = times_of(folder)
    for option, value in (("--lr", "1e-4"), ("--schedule", "linear"), ("--steps", "20"), ("--warmup", "4"),
                          ("--weight-decay", "0"), ("--total-batch", "128"), ("--seq-len", "32")):
        index = BASE.index(option) + 1
        old, BASE[index] = BASE[index], value
        try:
            _, err = train("--out-dir", folder, "--resume", status=1)
            assert f"{option} was " in err and "--allow-changes" in err, err
            assert log_of(folder).count("trl") == STEPS, "a refused resume touched the log"
            copy = run_folder("copy")
            shutil.copytree(folder, copy)
            out, _ = train("--out-dir", copy, "--resume", "--allow-changes")
            assert f"{option} was " in out and weights_hash(out) != REFERENCE["hash"], out
        finally:
            BASE[index] = old
    assert before == times_of(folder), "a refused resume changed the folder"
    shard = os.path.join(FOLDER, "data_train_001.bin")
    with open(shard, "rb") as f:
        content = f.read()
    write_shard(shard, [7] * (16 * 13 + 1))
    try:
        _, err = train("--out-dir", folder, "--resume", status=1)
        assert "the training data has changed" in err, err
    finally:
        with open(shard, "wb") as f:
            f.write(content)


def signalled(name, line_begins, signals):
    """Sends a run signals when it prints such a line: its folder, its status, and what it printed from then on. Where
    this process gets to run too late, the short run is over before they come: then once more."""
    for attempt in range(20):
        folder = run_folder(f"{name}{attempt}")
        process = start("--out-dir", folder)
        for line in process.stdout:
            if line.startswith(line_begins):
                break
        for number in signals:
            process.send_signal(number)
        out, _ = process.communicate(timeout=120)
        if checkpoints(folder) != [STEPS]:
            return folder, process.returncode, out
    raise AssertionError("20 runs ended without taking notice of a signal")


def test_stop_signals():
    """SIGTERM and SIGINT save and end with status 0; the resumed run ends like the straight one."""
    for number, signal_number in enumerate((signal.SIGTERM, signal.SIGINT)):
        folder, status, out = signalled(f"signal{number}_", f"step    {3 + number}/", [signal_number])
        assert status == 0, (status, out)
        assert "stopped by a signal after" in out and "--resume" in out, out
        assert len(checkpoints(folder)) == 1 and 0 < checkpoints(folder)[0] < STEPS, checkpoints(folder)
        out, _ = train("--out-dir", folder, "--resume")
        check_same_end(out, folder)


def test_stop_within_a_long_step():
    """A step of very many micro-batches does not delay the end: it is given up and taken again later."""
    folder = run_folder("long")
    index = BASE.index("--total-batch") + 1
    old, BASE[index] = BASE[index], str(64 * 100000)
    try:
        process = start("--out-dir", folder)
        for line in process.stdout:
            if "val loss" in line:
                break
        time.sleep(0.2)
        began = time.time()
        process.send_signal(signal.SIGTERM)
        out, _ = finish(process)
        assert time.time() - began <= 20, "it took too long to stop"
        assert "stopped by a signal after 0 of" in out, out
    finally:
        BASE[index] = old


def test_second_signal_ends_at_once():
    # It is stopped meanwhile, so that both are there when it wakes up.
    signals = [signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT]
    folder, status, _ = signalled("twice", "step    2/", signals)
    assert status in (128 + signal.SIGINT, 128 + signal.SIGTERM), status
    out, _ = train("--out-dir", folder, "--resume")
    check_same_end(out, folder)


def test_kill_at_any_moment():
    """kill -9 again and again, most often while a checkpoint is written; each resume goes on from a complete one."""
    folder = run_folder("killed")
    generator = random.Random(5)
    kills = progress = 0
    while kills < 12:
        process = start("--out-dir", folder, "--checkpoint-every", "1", "--resume")
        lines_before_kill = generator.randrange(14, 22)
        for line in process.stdout:
            lines_before_kill -= 1
            if lines_before_kill == 0:
                break
        time.sleep(generator.random() * 0.01)
        process.kill()
        process.communicate()
        kills += 1
        steps = checkpoints(folder)
        assert not steps or steps[-1] >= progress, f"the checkpoint of step {progress} is lost"
        progress = steps[-1] if steps else 0
        if progress >= STEPS - 2:
            remove = [step for step in steps if step > 2]
            for step in remove:
                remove_checkpoint(folder, step)
            progress = 0
    out, _ = train("--out-dir", folder, "--checkpoint-every", "1", "--resume")
    check_same_end(out, folder)
    leftovers = [name for name in os.listdir(folder) if ".tmp" in name or name.endswith(".old")]
    assert not leftovers, leftovers


def test_damaged_checkpoint_falls_back():
    """A flipped byte or a missing end in the newest checkpoint: said, and the one before is used."""
    folder = run_folder("damaged")
    train("--out-dir", folder, "--checkpoint-every", "4")
    remove_checkpoint(folder, STEPS)
    newest = checkpoints(folder)[-1]
    generator = random.Random(3)
    for kind in ("model", "state"):
        size = os.path.getsize(os.path.join(folder, f"{kind}_{newest:08}.bin"))
        places = [0, 9, 30, 1024, size - 1] + [generator.randrange(size) for _ in range(3)]
        for place in places + ["cut", "empty"]:
            copy = run_folder("copy")
            shutil.copytree(folder, copy)
            with open(os.path.join(copy, f"{kind}_{newest:08}.bin"), "r+b") as f:
                if place == "cut":
                    f.truncate(size - 1)
                elif place == "empty":
                    f.truncate(0)
                else:
                    f.seek(place)
                    byte = f.read(1)[0]
                    f.seek(place)
                    f.write(bytes([byte ^ 0x40]))
            out, _ = train("--out-dir", copy, "--resume")
            assert f"{newest:08}" in out and "going back to the checkpoint of step 4" in out, (kind, place, out)
            check_same_end(out, copy)


def test_all_checkpoints_damaged():
    folder = run_folder("ruined")
    train("--out-dir", folder, "--checkpoint-every", "6")
    for step in checkpoints(folder):
        with open(os.path.join(folder, f"state_{step:08}.bin"), "r+b") as f:
            f.truncate(100)
    out, err = train("--out-dir", folder, "--resume", status=1)
    assert "damaged checkpoint" in out and "state_00000012.bin" in out and "--overwrite" in err, out + err
    assert log_of(folder) == REFERENCE["log"], "a refused resume touched the log"


def test_fresh_run_in_a_used_folder():
    """Refused; with --overwrite nothing of the older run remains."""
    folder = run_folder("used")
    train("--out-dir", folder, "--checkpoint-every", "2")
    _, err = train("--out-dir", folder, status=1)
    assert "--resume" in err and "--overwrite" in err and folder in err, err
    assert checkpoints(folder) == [2, 4, 6, 8, 10, 12]
    index = BASE.index("--steps") + 1
    BASE[index] = "3"
    try:
        train("--out-dir", folder, "--overwrite")
        assert checkpoints(folder) == [3], checkpoints(folder)
        assert log_of(folder).count("trl") == 3, log_of(folder)
    finally:
        BASE[index] = str(STEPS)


def test_two_processes_one_folder():
    folder = run_folder("shared")
    first = start("--out-dir", folder)
    for line in first.stdout:
        if line.startswith("step"):
            break
    first.send_signal(signal.SIGSTOP)
    _, err = train("--out-dir", folder, "--resume", status=1)
    assert "another process" in err and folder in err, err
    first.send_signal(signal.SIGCONT)
    out, _ = finish(first)
    check_same_end(out, folder)


def test_keep_and_major():
    folder = run_folder("keep")
    train("--out-dir", folder, "--checkpoint-every", "1", "--keep", "2", "--keep-major", "5")
    assert checkpoints(folder) == [5, 10, 11, 12], checkpoints(folder)
    models = sorted(name for name in os.listdir(folder) if name.startswith("model"))
    assert models == [f"model_{step:08}.bin" for step in (5, 10, 11, 12)], models


def test_disk_full_keeps_the_last_checkpoint():
    """A file may not grow beyond a limit: the state does not fit. The model of the step before must survive."""
    folder = run_folder("full")
    train("--out-dir", folder, "--checkpoint-every", "6")
    remove_checkpoint(folder, STEPS)
    model = os.path.getsize(os.path.join(folder, "model_00000006.bin"))
    state = os.path.getsize(os.path.join(folder, "state_00000006.bin"))
    for limit in (model // 2, (model + state) // 2):
        _, err = train("--out-dir", folder, "--resume", status=1,
                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        assert "_00000012.bin" in err, err
        assert checkpoints(folder) == [6], checkpoints(folder)
        names = set(os.listdir(folder)) - {".lock"}
        texts = {"main.log", "speed.log", "run.json", "loss.svg"}
        assert names <= texts | {"model_00000006.bin", "state_00000006.bin"}, names
    out, _ = train("--out-dir", folder, "--resume")
    check_same_end(out, folder)


def setup_module():
    make_data()
    make_reference()


def teardown_module():
    shutil.rmtree(FOLDER, ignore_errors=True)
