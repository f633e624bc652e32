"""Requests to stop that arrive at a chosen line."""

import contextlib
import linecache
import sys


@contextlib.contextmanager
def interrupt_at(event, module, function):
    """Raise KeyboardInterrupt once, at a line event of a function of `module`."""
    count = 0

    def trace(frame, kind, _argument):
        nonlocal count
        if frame.f_code.co_name != function or frame.f_code.co_filename != module.__file__:
            return None  # a checker's wrapper has the same name
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        # the interpreter heeds no request to stop where a `try` begins, nor between the end of a
        # `with` and the lock's release, though a tracer may raise there
        if kind == "line" and not line.strip().startswith(("try:", "with _LOCK")):
            count += 1
            if count == event:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lambda: count
    finally:
        sys.settrace(before)
