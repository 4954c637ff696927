"""What all tests need."""

import signal

# A shell ignores Ctrl-C in its background jobs, and so would everything that these tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
