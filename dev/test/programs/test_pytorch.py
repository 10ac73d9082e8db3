"""The tests against PyTorch's numbers of each build: test_gpt2.c and test_gpt2.cu. They run one after another, since
the emulated ones take 3.5 GB each."""


def pytest_generate_tests(metafunc):
    """A build has them as programs, or as the suite gpt2 of the programs that include the trainers once."""
    commands = []
    for build in metafunc.config.builds:
        folder = "" if build == "build" else f"{build}/"
        for alone, suites in (("test_gpt2", "test_trainer"), ("test_gpt2emu", "emu/gpu_tests")):
            found = [[f"{folder}{alone}"], [f"{build}/{suites}", "gpt2"]]
            commands += [[f"./{name}", *words] for name, *words in found if metafunc.config.is_there(name)]
    metafunc.parametrize("command", commands, ids=[" ".join(command) for command in commands])


def test_numbers(command, runs):
    runs(command)
