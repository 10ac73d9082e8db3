"""What dev/data and dev/twin do about files and texts that others may have made. Standard library only.

Texts (paths, downloads, logs, run.jsonl, errors) reach the terminal through a Screen, which shows control characters
instead of sending them. Files whose names the programs choose themselves are opened by open_file and made by new_file:
no pipe or device in the place of a file is waited for, and nothing is written through a link.
"""
import contextlib
import errno
import io
import os
import re
import stat
import sys

# ---- Texts ----

# What steers a terminal or the order of reading, as text_steers() in llmc/base/utils.h has it. The last range: bytes of
# a path that is not UTF-8 (surrogateescape), which a terminal of 8 bits would take as C1.
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\udc80-\udc9f]")
CONTROL_IN_LINES = re.compile(CONTROL.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))  # not tab and newline


def escaped(match):
    code = ord(match[0])
    return f"\\x{code & 0xff:02x}" if code < 0x80 or code >= 0xdc80 else f"\\u{code:04x}"


def printable(text, lines=False):
    """The text with its control characters spelled out, such as \\x1b. lines: newlines and tabs stay."""
    return (CONTROL_IN_LINES if lines else CONTROL).sub(escaped, text)


class Screen(io.TextIOWrapper):
    """Standard output or standard error. All that is printed goes through printable()."""

    def __init__(self, stream):
        super().__init__(stream.buffer, stream.encoding, stream.errors, line_buffering=stream.line_buffering)
        self.replaced = stream  # which would close the buffer if it went away

    def write(self, text):
        super().write(printable(text, lines=True))
        return len(text)

    def draw(self, text):
        """Writes a line over the one before, on a terminal; no text: takes it away."""
        super().write(f"\r{printable(text)}\033[K")
        self.flush()


def screens(*names, errors=None):
    """Puts a Screen in the place of these streams: stdout, stderr. One that is closed stays so. errors: what becomes of
    letters of standard output that the locale does not have."""
    for name in names:
        stream = getattr(sys, name)
        if stream is not None:
            stream.flush()
            setattr(sys, name, Screen(stream))
    if errors and sys.stdout is not None:
        sys.stdout.reconfigure(errors=errors)


# ---- Files ----


def open_regular(path, flags, folder=None):
    """The opener of open(). folder: a descriptor that the path starts from."""
    writes = flags & (os.O_WRONLY | os.O_RDWR)
    try:
        descriptor = os.open(path, flags & ~os.O_TRUNC | os.O_NONBLOCK | os.O_NOCTTY | (os.O_NOFOLLOW if writes else 0),
                             0o666, dir_fd=folder)
    except OSError as error:
        reasons = {errno.ENXIO: NOT_ORDINARY, **({errno.ELOOP: LINK} if writes else {})}
        raise OSError(error.errno, reasons.get(error.errno, error.strerror), path) from None
    info = os.fstat(descriptor)
    reason = not_ordinary(info.st_mode) or (SECOND_NAME if writes and info.st_nlink > 1 else None)
    if reason:
        os.close(descriptor)
        raise OSError(errno.EISDIR if stat.S_ISDIR(info.st_mode) else errno.EINVAL, reason, path)
    if flags & os.O_TRUNC:
        os.ftruncate(descriptor, 0)
    return descriptor


LINK = "is a link, and links are not followed here; remove it"
SECOND_NAME = "is also the file of another name (a hard link), which would change too; remove it"
NOT_ORDINARY = "is a device or pipe, expected an ordinary file"


def not_ordinary(mode):
    """Why a file of this mode is none, or None."""
    if stat.S_ISDIR(mode):
        return "is a folder, expected a file"
    return None if stat.S_ISREG(mode) else NOT_ORDINARY


def open_file(path, mode="rb", **more):
    """open() for a file in a folder that others may write to. Reading follows links, writing does not."""
    return open(path, mode, opener=open_regular, **more)


def read_file(path, most=64 << 20):
    """The bytes of a small file."""
    with open_file(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"is longer than {most} bytes", path)
        return file.read()


@contextlib.contextmanager
def new_file(path, mode="wb", **more):
    """A file that takes its name when the block ends without an exception: whole or not at all. It is written beside
    its place, under a name that must be free. The folder stays the one that was opened, whatever its path names later.
    """
    name, temporary = os.path.basename(path), os.path.basename(path) + ".tmp"
    place = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        check_target(name, place)
        remove_in(place, temporary)
        with open(path, mode, opener=lambda _, flags: open_regular(temporary, flags | os.O_CREAT | os.O_EXCL, place),
                  **more) as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                if not names(temporary, place, file):
                    raise OSError(errno.EBUSY, "another program writes it at the same time", temporary)
                os.replace(temporary, name, src_dir_fd=place, dst_dir_fd=place)
            except BaseException:
                if names(temporary, place, file):
                    os.unlink(temporary, dir_fd=place)
                raise
        sync(place)
    except OSError as error:
        error.filename = path if error.filename in (None, name, temporary) else error.filename
        error.filename2 = None
        raise
    finally:
        os.close(place)


def check_target(name, place):
    """What will be replaced is a file, or a link, which is replaced and not followed."""
    try:
        mode = os.stat(name, dir_fd=place, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not_ordinary(mode) and not stat.S_ISLNK(mode):
        raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, not_ordinary(mode), name)


def names(name, place, file):
    """Whether a name in a folder is that of an open file."""
    try:
        found, ours = os.stat(name, dir_fd=place, follow_symlinks=False), os.fstat(file.fileno())
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)


def remove_in(place, name):
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=place)


def sync(descriptor):
    with contextlib.suppress(OSError):  # some network file systems cannot
        os.fsync(descriptor)


# ---- Folders ----


def own_folder(path):
    """Makes a folder unless it is there. A link in its place is refused: what lies behind it belongs to others. Returns
    a descriptor."""
    os.makedirs(path, exist_ok=True)
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        reason = "is a link, expected a folder; remove it" if os.path.islink(path) else error.strerror
        raise OSError(error.errno, reason, path) from None


def empty_folder(path):
    """Makes a folder, or removes the files in it."""
    folder = own_folder(path)
    try:
        for name in os.listdir(folder):
            remove_in(folder, name)
    finally:
        os.close(folder)
