"""How a command ends: the exit codes that scripts may rely on."""

DONE = 0
ANSWER_IS_NO = 1  # it ran, and nothing could be measured, or a check failed
WRONG_USE = 2  # as argparse does
INTERRUPTED = 130  # as shells do: 128 + SIGINT
