"""test_gpt2 and test_gpt2emu of each build, which compare whole models with PyTorch's numbers. They run one after
another, since the emulated ones take 3.5 GB each."""
import os


def pytest_generate_tests(metafunc):
    folders = ["" if build == "build" else build + "/" for build in metafunc.config.builds]
    programs = [f"./{folder}{name}" for folder in folders for name in ("test_gpt2", "test_gpt2emu")]
    metafunc.parametrize("program", [program for program in programs if os.path.exists(program)])


def test_numbers(program, runs):
    runs([program])
