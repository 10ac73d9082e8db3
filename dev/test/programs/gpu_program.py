"""The GPU trainer for its tests: ./train_gpt2emu (make train_gpt2emu). TRAIN_GPT2CU names another, ./train_gpt2cu
on a machine with a GPU. The emulator checks every access where a test asks for it with EMU_CHECK."""
import os

import pytest

from cli import Trainer

PROGRAM = os.path.abspath(os.environ.get("TRAIN_GPT2CU", "./train_gpt2emu"))
if not os.path.exists(PROGRAM):
    pytest.skip(f"no {PROGRAM} here (make train_gpt2emu)", allow_module_level=True)
with open(PROGRAM, "rb") as file:
    EMULATED = b"EMU_NO_GPU" in file.read()
GPU = Trainer(PROGRAM, EMU_CHECK="0", EMU_THREADS="1")
start, ran, refused = GPU.start, GPU.ran, GPU.refused


def only_emulated():
    """Skips a file whose tests choose what the GPU is like."""
    if not EMULATED:
        pytest.skip(f"{PROGRAM} is not emulated", allow_module_level=True)


def needs(*programs):
    """Skips a test of the programs here, whatever TRAIN_GPT2CU names."""
    for program in programs:
        if not os.path.exists(f"./{program}"):
            pytest.skip(f"{program} is not built")
