"""Which interpreter of the process this is."""

import importlib


def is_main() -> bool:
    """Tell whether this is the main interpreter.

    In others (mod_wsgi, `concurrent.interpreters`) RE2 and Hyperscan are not to be imported: they wait for ever for a
    lock of the interpreter they were made for.
    """
    for name in ("_interpreters", "_xxsubinterpreters"):  # since Python 3.13, and before
        try:
            interpreters = importlib.import_module(name)
        except ImportError:
            continue
        return bool(interpreters.get_current() == interpreters.get_main())
    return True
