"""A downloader that leaves only whole, verified files.

A file is fetched into FILE.part beside its place, hashed on the way, checked against the published size and checksum,
flushed and then renamed. What is left of a fetch that was stopped is continued with a Range request. A server that
sends more than is published is cut off there.

Standard library only.
"""
import hashlib
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from common import (BLOCK, Problem, Progress, Stopped, file_sha256, note, read_json, remove, show_bytes, show_path,
                    show_seconds, sync_folder, write_json)
import guard

HUB = "https://huggingface.co"
RESERVE = 64 << 20  # bytes of a disk that are left free
MAX_WAIT = 600  # seconds that a server may ask us to wait
SUMS = "SHA256SUMS"
LIST_PAGES, LIST_BYTES = 1000, 256 << 20  # of the Hub's list of files of one data set


class Missing(Problem):
    """The server has no such file."""


class TryAgain(Exception):
    """A failure that may pass. after: seconds that the server asks to wait, or None."""

    def __init__(self, reason, after=None):
        super().__init__(reason)
        self.after = after


# ---- Addresses ----


class Remote:
    """A file to fetch: its address on the real host, its name in our folder, and what is published about its bytes.
    Where no size is: about, for progress and disk, and most, the bytes at which it is cut off."""

    def __init__(self, url, name, size, sha256, about=None, most=None):
        self.url, self.name, self.size, self.sha256 = url, name, size, sha256
        self.about = size if size is not None else about
        self.most = size if size is not None else most

    def identity(self):
        return {"size": self.size, "sha256": self.sha256}


def address(options, url):
    """Where a file is fetched from: the mirror stands for every host."""
    if not options.mirror:
        return url
    parts = urllib.parse.urlsplit(url)
    query = "?" + parts.query if parts.query and not options.mirror.startswith("file:") else ""
    return options.mirror + parts.path + query


class Redirect(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never from https to another kind of address."""

    def redirect_request(self, request, file, code, message, headers, url):
        old, to = urllib.parse.urlsplit(request.full_url), urllib.parse.urlsplit(url)
        if to.scheme != "https" and (old.scheme == "https" or to.scheme != "http"):
            raise Problem(f"{request.full_url}: sends on to {url}, which is not https; try again later, or another "
                          "mirror")
        if file is not None:
            file.close()  # urllib would read its body to the end, which may never come
        return super().redirect_request(request, file, code, message, headers, url)


class Answer:
    """An open file or response: the bytes from `offset` to the end, `total` of the whole where known."""

    def __init__(self, stream, offset, total, link=None):
        self.stream, self.offset, self.total, self.link = stream, offset, total, link


def open_file(url, offset):
    path = urllib.request.url2pathname(urllib.parse.urlsplit(url).path)
    try:
        stream = guard.open_file(path, buffering=0)
    except (FileNotFoundError, NotADirectoryError):
        raise Missing(f"{path}: no such file in the mirror; is --mirror right?") from None
    except IsADirectoryError:
        raise Missing(f"{path}: is a folder, expected a file; is --mirror right?") from None
    stream.seek(offset)
    return Answer(stream, offset, os.fstat(stream.fileno()).st_size)


def retry_after(headers):
    text = (headers.get("Retry-After") or "").strip()
    return float(text) if re.fullmatch(r"\d{1,9}", text) else None


def http_failure(url, error):
    """The exception for a response that is no success."""
    code, host, reason = error.code, urllib.parse.urlsplit(url).netloc, str(error.reason or "")[:100]
    error.close()
    if code in (404, 410):
        return Missing(f"{url}: not found ({code}); was it moved or renamed? --mirror names another server")
    if code in (401, 403):
        return Problem(f"{url}: refused ({code}); try again later, or another mirror")
    if code in (408, 425, 429) or code >= 500:
        after = retry_after(error.headers)
        if after is not None and after > MAX_WAIT:
            return Problem(f"{host}: asks to wait {show_seconds(after)} ({code}); the same command goes on later")
        return TryAgain(f"{host} answers {code} {reason}".strip(), after)
    return Problem(f"{url}: unexpected answer {code} {reason}".strip())


def connection_failure(url, error):
    reason = getattr(error, "reason", None) or error
    host = urllib.parse.urlsplit(url).netloc
    if isinstance(reason, ssl.SSLCertVerificationError):
        return Problem(f"{host}: its certificate is not valid here ({reason.verify_message}); check the clock and the "
                       "proxy")
    if isinstance(reason, socket.gaierror) and reason.errno == socket.EAI_NONAME:
        return Problem(f"{host}: no such host; check the network, the proxy (https_proxy) or --mirror")
    if isinstance(reason, (socket.timeout, TimeoutError)):
        return TryAgain(f"{host} is silent")
    text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return TryAgain(f"{host}: {text}")


TRANSIENT = (urllib.error.URLError, http.client.HTTPException, ConnectionError, socket.timeout, TimeoutError,
             ssl.SSLError)


def open_http(options, url, offset):
    request = urllib.request.Request(url, headers={"User-Agent": "gpt2.c", "Accept-Encoding": "identity"})
    if offset > 0:
        request.add_header("Range", f"bytes={offset}-")
    opener = urllib.request.build_opener(Redirect)
    try:
        response = opener.open(request, timeout=options.timeout)
    except urllib.error.HTTPError as error:
        if error.code == 416 and offset > 0:
            error.close()
            return open_http(options, url, 0)
        raise http_failure(url, error) from None
    except TRANSIENT as error:
        raise connection_failure(url, error) from None
    return http_answer(response, offset)


def http_answer(response, offset):
    link, length = response.headers.get("Link"), response.headers.get("Content-Length")
    if response.status == 206:
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", (response.headers.get("Content-Range") or "").strip())
        if not found or int(found.group(1)) != offset:
            response.close()
            raise TryAgain("the server sent another part of the file than was asked for")
        total = None if found.group(2) == "*" else int(found.group(2))
        return Answer(response, offset, total, link)
    return Answer(response, 0, int(length) if length and length.isdigit() else None, link)


def open_address(options, url, offset=0):
    return open_file(url, offset) if url.startswith("file:") else open_http(options, url, offset)


def read_block(url, stream):
    """The next bytes, b"" at the end."""
    try:
        return stream.read(BLOCK)
    except http.client.IncompleteRead as error:
        return error.partial
    except TRANSIENT as error:
        raise connection_failure(url, error) from None


class Patience:
    """Counts failures without progress, and waits longer after each."""

    def __init__(self, options, say, wait=time.sleep):
        self.options, self.say, self.wait, self.failures = options, say, wait, 0

    def progress(self):
        self.failures = 0

    def after(self, failure, url):
        """Waits, or gives up."""
        self.failures += 1
        if self.failures > self.options.retries:
            raise Problem(f"{url}: {failure}; gave up after {self.failures} attempt{'s' * (self.failures > 1)}; what "
                          "was fetched stays, and the same command goes on") from None
        pause = min(60.0, self.options.retry_wait * 2**(self.failures - 1))
        if failure.after is not None:
            pause = max(pause, failure.after)
        self.say(f"{failure}; trying again in {show_seconds(pause) if pause >= 1 else 'a moment'} "
                 f"({self.failures} of {self.options.retries})")
        self.wait(pause)


def read_small(options, url, limit=64 << 20):
    """A small file as (bytes, Link header)."""
    patience = Patience(options, note)
    while True:
        try:
            answer = open_address(options, url)
            data = b""
            with answer.stream as stream:
                while len(data) <= limit:
                    block = read_block(url, stream)
                    if not block:
                        break
                    data += block
            if answer.total is not None and len(data) < min(answer.total, limit):
                raise TryAgain(f"{urllib.parse.urlsplit(url).netloc} broke off")
            if len(data) > limit:
                raise Problem(f"{url}: is larger than {show_bytes(limit)}, which makes no sense here")
            return data, answer.link
        except TryAgain as failure:
            patience.after(failure, url)


# ---- What is published about a file ----


def pinned(options, url, name, size, sha256, about=None):
    """A file that no API describes: its size (None: only about so many bytes) and checksum are ours. A mirror may name
    another checksum in its SHA256SUMS, which is then said. Without a size, four times as much is taken at most."""
    most = 4 * (size or about) + (1 << 20)
    if not options.mirror:
        return Remote(url, name, size, sha256, about=about, most=most)
    theirs = mirror_sums(options).get(urllib.parse.urlsplit(url).path.lstrip("/"))
    if theirs is None or theirs == sha256:
        return Remote(url, name, size, sha256, about=about, most=most)
    note(f"{name}: by the mirror's {SUMS} this is not the published file, but another")
    return Remote(url, name, None, theirs, most=most)


def mirror_sums(options):
    """Path -> checksum from the SHA256SUMS in the root of a mirror; {} if it has none."""
    url = f"{options.mirror}/{SUMS}"
    try:
        text = read_small(options, url)[0].decode()
    except Missing:
        return {}
    sums = {}
    for number, line in enumerate(text.splitlines(), 1):
        found = re.fullmatch(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)", line)
        if not found:
            raise Problem(f"{url}: line {number}: expected 64 hexadecimal digits, two spaces and a path")
        sums[found.group(2)] = found.group(1).lower()
    return sums


def next_page(options, link):
    """The address of the next page in a Link header, on the mirror if there is one."""
    found = re.search(r'<([^>]+)>\s*;\s*rel="?next"?', link or "")
    if not found:
        return None
    parts = urllib.parse.urlsplit(found.group(1))
    return address(options, f"{HUB}{parts.path}?{parts.query}")


def hub_files(options, repository, folder=""):
    """The files of a data set on the Hub, in the order of their paths, as its API describes them: path -> entry."""
    path = f"/api/datasets/{repository}/tree/main" + (f"/{folder}" if folder else "")
    url, entries, left = address(options, f"{HUB}{path}?recursive=true"), {}, LIST_BYTES
    for _ in range(LIST_PAGES):
        data, link = read_small(options, url, min(left, 64 << 20))
        left -= len(data)
        try:
            page = json.loads(data)
            entries.update((str(entry["path"]), entry) for entry in page if entry["type"] == "file")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise Problem(f"{url}: is not the Hub's list of files (a proxy's page?); try again later") from None
        url = next_page(options, link)
        if not url:
            return dict(sorted(entries.items()))
    raise Problem(f"{repository}: the Hub's list of files has more than {LIST_PAGES} pages; try again later")


def hub_remote(repository, path, entry, name):
    """A file of a data set. All that is fetched here is large enough that the list has its SHA-256."""
    url = f"{HUB}/datasets/{repository}/resolve/main/{urllib.parse.quote(path)}"
    lfs = entry.get("lfs") if isinstance(entry.get("lfs"), dict) else {}
    sha256, size = str(lfs.get("oid", "")).replace("sha256:", ""), lfs.get("size")
    if isinstance(size, int) and size >= 0 and re.fullmatch(r"[0-9a-f]{64}", sha256):
        return Remote(url, name, size, sha256)
    raise Problem(f"{repository}: the Hub's list of files has no size and checksum for {path}; nothing unverified is "
                  "fetched, try again later")


# ---- Fetching ----


class Part:
    """FILE.part, what was fetched of a file so far, and FILE.part.json, which says of which file by what is published.
    If a server has changed it meanwhile, the checksum of the whole tells."""

    def __init__(self, folder, remote):
        self.path = folder.join(remote.name + ".part")
        self.facts = self.path + ".json"
        self.remote = remote
        if read_json(self.facts) != remote.identity():
            self.discard()

    def size(self):
        try:
            return os.path.getsize(self.path)
        except FileNotFoundError:
            return 0

    def discard(self):
        remove(self.path)
        remove(self.facts)

    def begin(self):
        """Before the first byte: says what the bytes will belong to."""
        write_json(self.facts, self.remote.identity())


class Fetch:
    """Fetches one file, in a thread of its own or not."""

    def __init__(self, options, folder, remote, progress, stop):
        self.options, self.folder, self.remote, self.progress, self.stop = options, folder, remote, progress, stop
        self.url = address(options, remote.url)
        self.part = Part(folder, remote)
        self.counted = 0  # bytes of this file that the progress counts

    def run(self):
        patience = Patience(self.options, lambda text: self.progress.note(f"{self.remote.name}: {text}"), self.pause)
        while True:
            before = self.part.size()
            try:
                return self.attempt()
            except TryAgain as failure:
                if self.part.size() > before:
                    patience.progress()
                patience.after(failure, self.url)

    def pause(self, wait):
        if self.stop.wait(wait):
            raise KeyboardInterrupt

    def count(self, done, fresh):
        """Tells the progress how many bytes of this file are here."""
        if done < self.counted:
            self.progress.lose(self.counted - done)
        elif fresh:
            self.progress.add(done - self.counted)
        else:
            self.progress.begin_at(done - self.counted)
        self.counted = done

    def attempt(self):
        remote, part = self.remote, self.part
        offset = part.size()
        if offset > remote.most:
            part.discard()
            offset = 0
        if offset == 0 or offset != remote.size:
            offset, digest = self.transfer(offset)
        else:
            digest = self.hash_part(offset)
        self.finish(digest, offset > 0)

    def transfer(self, offset):
        """Fetches what is missing. Returns where it began, and the digest of the whole."""
        remote, part = self.remote, self.part
        answer = open_address(self.options, self.url, offset)
        with answer.stream as stream:
            total = answer.total if answer.total is not None else remote.size
            if remote.size is not None and total != remote.size:
                part.discard()
                raise Problem(f"{self.url}: has {total} bytes, {remote.size} are published (truncated, or changed "
                              "since); try again later, or another mirror")
            if answer.offset == 0:
                part.discard()
                part.begin()
            digest = self.hash_part(answer.offset)
            self.receive(stream, digest)
        if total is not None and self.part.size() < total:
            raise TryAgain(f"broke off after {show_bytes(self.part.size())} of {show_bytes(total)}")
        return answer.offset, digest

    def refuse_more(self):
        self.part.discard()
        bound = "the published size" if self.remote.size is not None else "the most that is taken of this file"
        raise Problem(f"{self.url}: is longer than {self.remote.most} bytes, {bound}; what was fetched is removed: try "
                      "again later, or another mirror")

    def hash_part(self, size):
        digest = hashlib.sha256()
        if size > 0:
            with guard.open_file(self.part.path, buffering=0) as file:
                while True:
                    block = file.read(BLOCK)
                    if not block:
                        break
                    digest.update(block)
        self.count(size, False)
        return digest

    def receive(self, stream, digest):
        with guard.open_file(self.part.path, "ab", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            while not self.stop.is_set():
                block = read_block(self.url, stream)
                if not block:
                    return
                size += len(block)
                if size > self.remote.most:
                    self.refuse_more()
                view = memoryview(block)
                while view:
                    view = view[file.write(view):]
                digest.update(block)
                self.count(self.counted + len(block), True)
        raise KeyboardInterrupt

    def finish(self, digest, resumed):
        """Verifies and gives the file its name. What was continued and is wrong is fetched once more from the start."""
        remote, part = self.remote, self.part
        size, sha256, wrong = part.size(), digest.hexdigest(), None
        if sha256 != remote.sha256:
            wrong = f"checksum {sha256}, published is {remote.sha256}"
        if remote.size is not None and size != remote.size:
            wrong = f"{size} bytes, published are {remote.size}"
        if wrong:
            part.discard()
            if resumed:
                raise TryAgain(f"the parts do not fit together ({wrong}); from the start")
            raise Problem(f"{self.url}: {wrong}; what was fetched is removed: try again later, or another mirror")
        with guard.open_file(part.path) as file:
            os.fsync(file.fileno())
        os.replace(part.path, self.folder.join(remote.name))
        remove(part.facts)
        sync_folder(self.folder.path)
        self.folder.remember(remote.name, sha256)


def is_here(folder, remote, verify):
    """Whether a file is already there, whole and verified: by its record, or else by its checksum."""
    path = folder.join(remote.name)
    try:
        size = os.path.getsize(path)
    except FileNotFoundError:
        return False
    if os.path.isdir(path):
        raise Problem(f"{show_path(path)}: is a folder, a file is to be written")
    entry = folder.entry(remote.name)
    if entry and not verify and "made" not in entry:
        if entry.get("sha256") == remote.sha256 and remote.size in (None, size):
            return True
    if remote.size not in (None, size):
        note(f"{remote.name}: {size} bytes here, published are {remote.size}; it is fetched again")
        return False
    progress = Progress(f"checking {remote.name}", size)
    sha256 = file_sha256(path, progress)
    progress.finish()
    if sha256 != remote.sha256:
        note(f"{remote.name}: its checksum is not the published one; it is fetched again")
        return False
    folder.remember(remote.name, sha256)
    return True


def check_disk(folder, needed, hint=""):
    """needed: bytes that will be written."""
    free = shutil.disk_usage(folder.path).free
    if needed + RESERVE > free and needed > 0:
        raise Problem(f"{show_path(folder.path)}: {show_bytes(needed)} are to be written, but {show_bytes(free)} are "
                      f"free; free some space, or choose another disk with --out{hint}")


class Downloads:
    """Fetches several files at once, in threads. The main thread calls watch() until it returns."""

    def __init__(self, options, folder, remotes, extra_disk=0, hint=""):
        self.options, self.folder = options, folder
        self.todo = [remote for remote in remotes if not is_here(folder, remote, options.verify)]
        self.count, self.here = len(remotes), len(remotes) - len(self.todo)
        self.stop, self.mutex, self.problem = threading.Event(), threading.Lock(), None
        total = sum(remote.about or 0 for remote in self.todo)
        partial = sum(Part(folder, remote).size() for remote in self.todo)
        if self.todo:
            check_disk(folder, max(0, total - partial) + extra_disk, hint)
        self.progress = Progress("", total if all(remote.about is not None for remote in self.todo) else 0)
        self.queue, self.active = list(self.todo), []
        jobs = min(options.jobs, len(self.todo))
        self.threads = [threading.Thread(target=self.work, daemon=True) for _ in range(jobs)]
        for thread in self.threads:
            thread.start()

    def work(self):
        while not self.stop.is_set():
            with self.mutex:
                if not self.queue:
                    return
                remote = self.queue.pop(0)
                self.active.append(remote.name)
            try:
                Fetch(self.options, self.folder, remote, self.progress, self.stop).run()
                with self.mutex:
                    self.here += 1
            except BaseException as error:  # a thread has nobody above it: watch() raises it again
                with self.mutex:
                    self.problem = self.problem or error
                self.stop.set()
            finally:
                with self.mutex:
                    self.active.remove(remote.name)

    def describe(self):
        with self.mutex:
            active = self.active[:1]
        count = [f"{self.here} of {self.count}"] if self.count > 1 else []
        return ": ".join(count + active)

    def watch(self):
        """Shows the progress until all is here. After a failure or Ctrl-C the others keep what they have."""
        try:
            for thread in self.threads:
                while thread.is_alive():
                    thread.join(0.05)
                    self.progress.what = self.describe()
                    self.progress.draw()
        except KeyboardInterrupt as stopped:
            raise type(stopped)(self.stopped_message(type(stopped))) from None
        finally:
            self.stop.set()
            deadline = time.monotonic() + 1.0
            for thread in self.threads:  # one that waits for a silent server ends with the program
                thread.join(max(0.0, deadline - time.monotonic()))
            self.progress.finish()
        if self.problem:
            raise self.problem

    def stopped_message(self, kind):
        by = "SIGTERM" if kind is Stopped else "Ctrl-C"
        return (f"stopped by {by}: {self.here} of {self.count} file{'s' * (self.count != 1)} complete, parts of others "
                "stay; the same command goes on")


def fetch(options, folder, remotes, extra_disk=0, hint=""):
    """Fetches what is not there yet. Returns how many files were fetched."""
    downloads = Downloads(options, folder, remotes, extra_disk, hint)
    downloads.watch()
    return len(downloads.todo)
