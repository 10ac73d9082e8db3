"""The tests against PyTorch's numbers of each build: test_gpt2.c, test_gpt2.cu and test_llama3.cu. They run one after
another, since the emulated ones take 3.5 GB each."""
import os

# Of Llama, a quick run leaves out what test_gpt2.cu says of any model.
LLAMA = ["llama3"] if "TEST_QUICK" in os.environ else []


def pytest_generate_tests(metafunc):
    """A build has them as programs, or as the suite gpt2 of the programs that include the trainers once."""
    commands = []
    for build in metafunc.config.builds:
        folder = "" if build == "build" else f"{build}/"
        found = [[f"{folder}test_gpt2"], [f"{build}/test_trainer", "gpt2"], [f"{folder}test_gpt2emu"],
                 [f"{build}/emu/gpu_tests", "gpt2"], [f"{folder}test_llama3emu", *LLAMA]]
        commands += [[f"./{name}", *words] for name, *words in found if metafunc.config.is_there(name)]
    metafunc.parametrize("command", commands, ids=[" ".join(command) for command in commands])


def test_numbers(command, runs):
    runs(command)
