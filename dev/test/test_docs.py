"""README.md and CONTRIBUTING.md say only what is true: files, options and make targets that they name exist, and the
programs accept every command line in them (with --plan, which checks everything and trains nothing)."""
import glob
import os
import re
import shlex
import shutil
import subprocess
import tempfile

from harness import run

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DOCUMENTS = ["README.md", "CONTRIBUTING.md"]
PROGRAMS = {name: os.path.join(ROOT, os.environ.get(name.upper(), name)) for name in ("train_gpt2", "tokenize")}
# Names that stand for a user's own files, or for what a run writes.
OF_THE_USER = re.compile(r"^(run|build/|shards/|gpt2/|book|main\.log$|loss\.svg$|state_|model_[\d*]|model\.safetensors"
                         r"|config\.json|vocab\.bpe|gpt2_tokenizer\.bin)")


def text_of(document):
    with open(os.path.join(ROOT, document), encoding="utf-8") as file:
        return file.read()


def shell_lines(document):
    """The commands of the ```sh blocks: comments dropped, continued lines joined."""
    for block in re.findall(r"^```sh\n(.*?)^```", text_of(document), re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield words


def code_spans(document):
    text = re.sub(r"^```.*?^```", "", text_of(document), flags=re.M | re.S)
    return [span.replace("\n", " ") for span in re.findall(r"`([^`]+)`", text)]


def help_of(program):
    result = subprocess.run([PROGRAMS[program], "--help"], capture_output=True, text=True)
    assert result.returncode == 0, (program, result)
    return result.stdout


def options_in(text):
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text))


def test_paths_exist():
    missing = []
    for document in DOCUMENTS:
        for span in code_spans(document):
            for word in span.split():
                word = re.sub(r"^\./", "", word.strip("'\"(")).rstrip("'\").,:;")
                looks_like_a_path = re.fullmatch(r"\.?[\w.*/-]+(/|\.(c|h|py|sh|md|yml|cu|bin|txt))", word)
                if not looks_like_a_path or OF_THE_USER.match(word) or word in (".bin", ".h", ".c", ".py"):
                    continue
                if not glob.glob(os.path.join(ROOT, word)):
                    missing.append(f"{document}: {word}")
    assert not missing, missing


def test_links_exist():
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)\)", text_of(document)):
            if not target.startswith("http"):
                assert os.path.exists(os.path.join(ROOT, target)), f"{document}: {target}"


def test_make_targets_exist():
    with open(os.path.join(ROOT, "Makefile"), encoding="utf-8") as file:
        makefile = file.read()
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.M)) | {"train_gpt2", "test_gpt2", "tokenize"}
    switches = set(re.findall(r"\$\(([A-Z_]+)\)", makefile)) | {"OPENMP", "SANITIZE", "WERROR"}
    checked = 0
    for document in DOCUMENTS:
        lines = list(shell_lines(document))
        spans = [shlex.split(span) for span in code_spans(document) if span.startswith("make ")]
        for words in lines + spans:
            if words[0] != "make":
                continue
            for word in words[1:]:
                name, switch, _ = word.partition("=")
                assert name in (switches if switch else targets), f"{document}: {' '.join(words)}: {word}"
                checked += 1
    assert checked >= 8, checked


def test_options_exist():
    known = {program: options_in(help_of(program)) for program in PROGRAMS}
    known["test.sh"] = options_in(subprocess.run(["bash", os.path.join(ROOT, "scripts/test.sh"), "--help"],
                                                 capture_output=True, text=True).stdout)
    everything = set().union(*known.values()) | {"--help", "--version"}
    for document in DOCUMENTS:
        for words in shell_lines(document):
            program = os.path.basename(words[0])
            if program in known:
                for option in options_in(" ".join(words)):
                    assert option in known[program] | {"--help"}, f"{document}: {program} has no {option}"
        for span in code_spans(document):
            for option in options_in(span):
                assert option in everything, f"{document}: no program has {option}"


def prepare(folder):
    """Small stand-ins for the files that the documents' commands name."""
    text = " ".join(f"This is sentence {i} of a book." for i in range(400))
    with open(os.path.join(folder, "book.txt"), "w") as file:
        file.write(text)
    tiny = os.path.join(ROOT, "dev/test/fixtures/hf_tiny")
    shutil.copytree(tiny, os.path.join(folder, "gpt2"))
    train = [PROGRAMS["train_gpt2"], "--train-data", "book.txt", "--layers", "1", "--channels", "8", "--heads", "1",
             "--context", "512", "--out-dir", "run", "--steps", "1", "--export", "hf", "--sample-every", "0"]
    subprocess.run(train, cwd=folder, check=True, capture_output=True)


def test_trainer_accepts_every_command_line():
    checked = 0
    with tempfile.TemporaryDirectory(prefix="gpt2c_docs.") as folder:
        prepare(folder)
        for document in DOCUMENTS:
            for words in shell_lines(document):
                if words[0] != "./train_gpt2" or "vocab.bpe" in words or any(".bin" in word for word in words):
                    continue  # GPT-2's own vocabulary and its shards are not ours to ship
                command = [PROGRAMS["train_gpt2"], *words[1:], "--plan"]
                result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
                assert result.returncode == 0, (document, words, result.stderr)
                checked += 1
    assert checked >= 4, checked


if __name__ == "__main__":
    run("docs", [test_paths_exist, test_links_exist, test_make_targets_exist, test_options_exist,
                 test_trainer_accepts_every_command_line])
