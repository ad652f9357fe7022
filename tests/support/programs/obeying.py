"""What the programs share that do as they are told, line by line, on standard input."""

import json
import sys


def obey(**commands):
    """Call what each line of standard input names; print what it returns as a line of JSON."""
    for line in sys.stdin:
        command, *arguments = line.split()
        answer(commands[command](*arguments))


def answer(value):
    print(json.dumps(value), flush=True)
