"""The Python side of the test harness: the same closing line as dev/test/test.h, standard library only."""
import signal
import sys
import traceback

# A shell that starts a test in the background makes it ignore SIGINT, and with it every program that the test starts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Skip(Exception):
    """Raise with a reason to end a test as skipped."""


def run(name, tests):
    """Runs the functions in tests; prints a line each and `name: N passed, N failed, N skipped`. Exits with status 1 on
    any failure."""
    passed = failed = skipped = 0
    only = sys.argv[1:]
    for test in tests:
        if only and test.__name__ not in only:
            continue
        try:
            test()
            passed += 1
            print(f"ok   {name}: {test.__name__}", flush=True)
        except Skip as reason:
            skipped += 1
            print(f"skip {name}: {test.__name__}: {reason}", flush=True)
        except Exception:
            failed += 1
            traceback.print_exc(file=sys.stdout)
            print(f"FAIL {name}: {test.__name__}", flush=True)
    print(f"{name}: {passed} passed, {failed} failed, {skipped} skipped", flush=True)
    sys.exit(1 if failed else 0)
