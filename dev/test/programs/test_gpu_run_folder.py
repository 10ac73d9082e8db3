"""What the folder of a GPU run says of itself, of one rank and of several: run.jsonl with the GPU of each. How it ended
when a rank was lost or got a signal: test_gpu_ranks.py. The rest is that of the CPU trainer: test_run_folder.py."""
import os
import re
import time

import cli
import gpu_program
from cli import logged_steps
from ranks import PROGRAM, Ranks, has_mpi, ran
from run_folder import check_machine, check_options, check_times, record_of, speed_of

TEXT = cli.text_file(size=2000)
RUN = ["-i", TEXT, "--tokenizer", "byte", *cli.TINY, *cli.QUIET]


def test_describes_the_run():
    """One process, two by TCP, two by mpirun: one record each, with all GPUs."""
    options = gpu_program.ran("--help", "all")
    for count, how in ((1, "tcp"), (2, "tcp"), (2, "mpi")):
        if how == "mpi" and has_mpi() is not None:
            continue
        since = time.time()
        folder = cli.new_folder("described")
        out = Ranks(count, *RUN, "-d", 64, "-x", 2, "--head-rows", 7, "-o", folder, how=how, TERM="xterm").finish()
        assert "\r" not in out and "\x1b" not in out, out  # mpirun has given its processes a terminal
        record = record_of(folder)
        assert record["program"] == os.path.basename(PROGRAM) and record["command"][0] == PROGRAM, record["command"]
        assert f"precision   {record['options']['computed-in']}" in out and record["tokens_per_step"] == 64
        given = {"head-rows": 7, "zero-stage": 0, "tf32": 1, "watchdog": 45}
        check_options(record, given, options)
        check_machine(record, count)
        gpus = record["hardware"]["gpus"]
        assert set(gpus) == {"number", "name", "memory_bytes", "compute_capability"} and gpus["number"] == count, gpus
        assert gpus["name"] in out and f"compute capability {gpus['compute_capability']}" in out, gpus
        assert gpus["memory_bytes"] > 2**28, gpus
        versions = record["versions"]
        assert all(re.fullmatch(r"\d+\.\d+", versions[name]) for name in ("cuda_runtime", "cuda_driver")), versions
        assert all(re.fullmatch(r"\d+\.\d+\.\d+", versions[name]) for name in ("cublaslt", "nccl")), versions
        check_times([record["time"], record["end"]["time"]], since)
        assert record["end"]["status"] == "done" and record["end"]["weights_hash"] == cli.weights_hash(out)
        assert len(speed_of(folder)) == 2 and record["end"]["step"] == 2
        assert not [name for name in os.listdir(folder) if "tmp" in name], os.listdir(folder)


def test_other_ranks_go_on():
    """Two ranks begin, one goes on, and the log is that of one run."""
    folder = cli.new_folder("elastic")
    words = [*RUN, "-d", 64, "-n", 2, "-o", folder]
    ran(2, *words, "-x", 2)
    ran(1, *words, "-x", 4, "--resume", "--allow-changes")
    record = record_of(folder)
    assert [start["step"] for start in record["starts"]] == [0, 2] and record["hardware"]["ranks"] == 1
    assert "2" in record["starts"][0]["command"] and record["starts"][0]["end"]["step"] == 2
    assert len(speed_of(folder)) == len(logged_steps(folder)) == 4
