"""What the programs in dev/data share: options, errors of one line, a folder for one program at a time, downloads.

Standard library only. huggingface_hub fetches the files of the Hub, and is imported only for them.
"""
import contextlib
import errno
import fcntl
import glob
import hashlib
import http.client
import importlib
import os
import shutil
import sys
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LOCKS = []  # open files, which are locked until the program ends
sys.path.insert(0, os.path.join(ROOT, "dev"))
import guard  # noqa: E402: it lies in the folder that was just added


class Problem(Exception):
    """What a user is told in one line: what is wrong, where, what was expected, what to do."""


def run(program, main):
    """Runs main() and turns what went wrong into one line and an exit status."""
    try:
        main()
        return
    except KeyboardInterrupt:
        message, status = "stopped by Ctrl-C; the same command goes on", 130
    except Problem as problem:
        message, status = str(problem), 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        hint = "; make room, and the same command goes on" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        message, status = f"{where}{error.strerror or error}{hint}", 1
    except (ValueError, LookupError) as error:
        message, status = f"the data have another form than expected: {error!r}"[:300], 1
    print(guard.printable(f"{program}: {message}"), file=sys.stderr)
    sys.exit(status)


def parser(description, out, vocab=True):
    """The options that the programs share. out: the folder they write to, seen from the root."""
    p = guard.Parser(description)
    p.add_argument("--out", metavar="DIR", type=os.path.abspath, default=os.path.join(ROOT, out),
                   help=f"write into this folder (default: {out} of the repository)")
    if vocab:
        p.add_argument("--vocab", metavar="FILE", help="the tokenizer (default: GPT-2's, gpt2_tokenizer.bin in the "
                       "root of the repository, made if it is missing)")
    return p


def note(text):
    """A remark that is no error."""
    print(guard.printable(text), file=sys.stderr, flush=True)


def shown(path):
    """A path as short as possible: relative to where the user is."""
    relative = os.path.relpath(path)
    return guard.printable(path if relative.startswith(os.path.join("..", "..")) else relative)


def need(module):
    """Imports a module of another package, or says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise Problem(f"{error}; this needs {package}: python3 -m pip install {package}") from None


def open_folder(path, source=""):
    """Makes the folder if it is not there, and locks it until the program ends. source: what its files are made from.
    The folder keeps this line, so that files of two sources never mix."""
    os.makedirs(path, exist_ok=True)
    record = open(os.path.join(path, ".source"), "a+", encoding="utf-8", errors="replace")
    LOCKS.append(record)
    try:
        fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Problem(f"{shown(path)}: another program writes here now; wait for its end, or choose another --out "
                      "folder") from None
    record.seek(0)
    before = record.read()
    if source and before not in ("", source):
        raise Problem(f"{shown(path)}: holds files of another kind ({before}; now {source}); choose another --out "
                      "folder")
    record.write("" if before else source)
    record.flush()
    for left in glob.glob(os.path.join(glob.escape(path), ".work*")):  # by a program that was killed
        shutil.rmtree(left)


def write_file(path, data):
    """The name holds the whole of the bytes, or what it held before."""
    with open(path + ".part", "wb") as file:
        file.write(data)
    file_sha256(path + ".part")
    os.replace(path + ".part", path)


def file_sha256(path):
    """The checksum of a file, which is also flushed to the disk."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
        os.fsync(file.fileno())
    return digest.hexdigest()


def fetch_url(url, path, sha256):
    """Fetches a file that no API describes, unless it is there. Its checksum stands in the program."""
    if os.path.exists(path) and file_sha256(path) == sha256:
        return
    note(f"fetching {url}")
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            data = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise Problem(f"{url}: {getattr(error, 'reason', error)}; check the network and the proxy (https_proxy), or "
                      f"put the file at {shown(path)}") from None
    if hashlib.sha256(data).hexdigest() != sha256:
        raise Problem(f"{url}: is not the file that is expected (checksum); try again later")
    write_file(path, data)


@contextlib.contextmanager
def hub_errors(what):
    """huggingface_hub's errors, of many kinds and lines, as one line."""
    try:
        yield
    except Exception as error:
        if getattr(error, "errno", None):
            raise  # of the disk
        first = (str(error).strip() or repr(error)).splitlines()[0].rstrip(".")
        raise Problem(f"{what}: {first}; HF_ENDPOINT names a mirror of the Hub; what has come stays, and the same "
                      "command goes on") from None


def hub_files(repository, folder=None):
    """The large files of a data set of the Hub: path -> size and sha256, as its API publishes them."""
    api = need("huggingface_hub").HfApi()
    with hub_errors(repository):
        entries = api.list_repo_tree(repository, folder, recursive=True, repo_type="dataset")
        return {entry.path: entry.lfs for entry in entries if getattr(entry, "lfs", None)}


def fetch_hub(repository, files, folder):
    """Fetches files of a data set of the Hub. files: path -> published size and sha256, and a name in the folder. A
    file gets this name after its checksum was compared; one with this name and size is taken as it is. Returns how many
    files were fetched."""
    hub, missing = need("huggingface_hub"), {}
    for path, (published, name) in files.items():
        target = os.path.join(folder, name)
        if not os.path.exists(target) or os.path.getsize(target) != published.size:
            missing[path] = published, target
    for number, (path, (published, target)) in enumerate(missing.items(), 1):
        note(f"fetching {path} of {repository} ({number} of {len(missing)}, {published.size / 1e6:.1f} MB)")
        with hub_errors(f"{repository}: {path}"):
            fetched = hub.hf_hub_download(repository, path, repo_type="dataset", local_dir=folder + "/.hub")
        if file_sha256(fetched) != published.sha256:
            os.remove(fetched)
            raise Problem(f"{repository}: {path}: its checksum is not the published one; what came is removed, and the "
                          "same command fetches it again")
        os.replace(fetched, target)
    shutil.rmtree(os.path.join(folder, ".hub"), ignore_errors=True)
    return len(missing)
