"""Reads files out of a tar archive, one after another, and trusts neither its headers nor its sizes.

Nothing is unpacked to the disk: the names in the archive choose which files are read, never where anything is written.
Only files count, not links and devices. The bounds hold for the size that a file has when it is read, so also for a
sparse one, which is longer than what the archive holds of it.
"""
import contextlib
import tarfile
import zlib

from common import Problem

MOST_MEMBERS, MOST_HEADER = 10000, 1 << 20
PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)


class Member(tarfile.TarInfo):
    """A header. Those that are followed by more of the header are read into memory, so their size is checked first, in
    the method that tarfile says is to be overridden: newer Pythons do not call frombuf() for every header."""

    def _proc_member(self, archive):
        if self.size < 0 or self.type not in PLAIN and self.size > MOST_HEADER:
            raise tarfile.ReadError(f"a header says {self.size} bytes, expected at most {MOST_HEADER}")
        return super()._proc_member(archive)


def read_members(name, file, mode, wanted, most_file, most_all):
    """Yields the name and the stream of each plain file that wanted(its name) picks. most_file, most_all: bytes of one
    that is picked, and of all files together. The caller reads within refusing(name)."""
    total = 0
    with tarfile.open(fileobj=file, mode=mode, tarinfo=Member) as archive:
        for count, member in enumerate(archive, 1):
            total += member.size
            if count > MOST_MEMBERS or total > most_all:
                what = f"{MOST_MEMBERS} files" if count > MOST_MEMBERS else f"{most_all} bytes"
                raise Problem(f"{name}: unpacks to more than {what}, which it should not; remove the file and run this "
                              "again, or choose another mirror")
            if not member.isreg() or not wanted(member.name):
                continue
            if member.size > most_file:
                raise Problem(f"{name}: {member.name} has {member.size} bytes, expected at most {most_file}; remove "
                              "the archive and run this again, or choose another mirror")
            yield member.name, archive.extractfile(member)


@contextlib.contextmanager
def refusing(name):
    """Tells of a damaged archive in one line. tarfile raises more than it documents."""
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error, ValueError, OverflowError) as error:
        raise Problem(f"{name}: {error}; remove the file and run this again") from None
