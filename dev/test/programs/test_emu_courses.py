"""Programs as courses hand them out, in dev/test/emu/courses: emucc builds them, and their results are right in two
orders of blocks and threads. Programs that need more than the emulator has end in one line."""
import glob
import os
import subprocess

import pytest

from tools import ROOT, path, write

COURSES = os.path.join(ROOT, "dev", "test", "emu", "courses")
NAMES = sorted(os.path.basename(name)[:-len(".cu")] for name in glob.glob(f"{COURSES}/*.cu"))
QUICK = ("heat_grid_sync", "histogram", "launches", "ptx_bits")
assert set(QUICK) <= set(NAMES)


def emucc(source, program):
    return subprocess.run(["dev/emu/emucc", "-O0", source, "-o", program], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long)
                                  for name in NAMES])
def test_course(name):
    program = path(name)
    built = emucc(f"{COURSES}/{name}.cu", program)
    assert (built.returncode, built.stderr) == (0, "")
    for order in ("forward", "random:1"):
        result = subprocess.run([program], capture_output=True, text=True, env=dict(os.environ, EMU_SCHEDULE=order))
        assert (result.returncode, result.stderr, result.stdout.splitlines()[-1:]) == (0, "", ["ok"]), result.stdout


@pytest.mark.parametrize("text, line", [
    ("#include <cub/cub.cuh>", "emucc: {}: <cub/cub.cuh>"),
    ("__global__ void f(cudaTextureObject_t t) {}", "emucc: {}:1: cudaTextureObject_t"),
    ("int f() {\n return cudaGraphLaunch(0, 0);\n}", "emucc: {}:2: cudaGraphLaunch"),
    ("int f(cudaDeviceProp p) { return p.uuid.bytes[0]; }", "emucc: {}:1: cudaDeviceProp::uuid"),
    ("#include <cooperative_groups.h>\nvoid f() { cooperative_groups::this_cluster(); }",
     "emucc: {}:2: cooperative_groups::this_cluster"),
    ('__device__ void f() { asm volatile("wgmma.fence.sync.aligned;"); }',
     "{}:1: error: the PTX instruction wgmma.fence.sync.aligned"),
    ('__device__ void f() {\n asm volatile("{ .reg .pred p; }");\n}', "{}:2: error: the PTX instruction .reg"),
    ('__device__ int f() { int r; asm("mov.u32 %0, %%smid;" : "=r"(r)); return r; }',
     "{}:1: error: the PTX register %smid"),
    ("extern __shared__ int a[];", "{}:1: error: __shared__ outside of a function: declare it inside\n"),
    ("void f() { k<<<1, 2>>(3); }", "{}:1: error: no >>> ends the launch\n"),
], ids=["header", "texture", "graph", "property", "cluster", "instruction", "declaration", "register", "outside",
        "launch"])
def test_missing(text, line):
    """One line, which mostly says where the emulator's parts are listed."""
    source = write("missing.cu", text + "\nint main() { return 0; }\n")
    built, what = emucc(source, path("missing")), line.format(source)
    if not what.endswith("\n"):
        what += " is not part of the emulator (dev/emu/README.md lists what is)\n"
    assert (built.returncode, built.stderr) == (1, what)
