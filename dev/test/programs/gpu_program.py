"""For tests of the GPU trainer: imported before cli, so that cli runs TRAIN_GPT2CU (without it: ./train_gpt2emu)."""
import os

import pytest

PROGRAM = os.path.abspath(os.environ.get("TRAIN_GPT2CU", "./train_gpt2emu"))
if not os.path.exists(PROGRAM):
    pytest.skip(f"no {PROGRAM} here (make train_gpt2emu)", allow_module_level=True)
os.environ["TRAIN_GPT2"] = PROGRAM
with open(PROGRAM, "rb") as file:
    EMULATED = b"EMU_NO_GPU" in file.read()


def only_emulated():
    """Skips a file whose tests choose what the GPU is like."""
    if not EMULATED:
        pytest.skip(f"{PROGRAM} is not emulated", allow_module_level=True)
