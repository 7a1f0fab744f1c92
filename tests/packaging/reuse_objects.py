"""A compiler launcher that takes the library's objects from another build.

    reuse_objects.py BUILD TESSERA_BUILD COMPILER ARGUMENT...

Compiling the library again takes minutes, and the same command makes the same
object. So an object that BUILD has is not made again: its command must be the
same here, but for the folder that it is compiled in and warnings, and then the
object is taken. Another command is an error that shows both. What BUILD does
not have is compiled.
"""

import json
import os
import pathlib
import re
import shlex
import sys


def value_of(arguments, flag):
    return arguments[arguments.index(flag) + 1] if flag in arguments else None


def essence(arguments, build):
    """The arguments that shape the object, with the build folder as @BUILD@."""
    kept, skip = [], False
    for argument in arguments:
        if skip or argument in ("-o", "-MF", "-MT", "-MQ"):
            skip = not skip
        elif argument == "-MD" or re.match("-W(?!a,|l,|p,)", argument):
            continue
        elif argument != "-fPIC" or argument not in kept:  # CMake repeats it
            kept.append(argument.replace(build, "@BUILD@"))
    return kept


def commands_of(build):
    """{object, relative to the build folder: arguments} of a build folder."""
    commands = {}
    entries = pathlib.Path(build, "compile_commands.json").read_text()
    for entry in json.loads(entries):
        arguments = shlex.split(entry["command"])
        output = pathlib.Path(entry["directory"], value_of(arguments, "-o"))
        commands[os.path.relpath(output, build)] = arguments
    return commands


def reuse(arguments, known, known_object, builds):
    ours, theirs = essence(arguments, builds[1]), essence(known, builds[0])
    theirs = theirs[theirs.index(ours[0]):]
    if ours != theirs:
        sys.exit("reuse_objects: other flags than in the main build:\n"
                 f"here {shlex.join(ours)}\nmain {shlex.join(theirs)}")
    output = pathlib.Path(value_of(arguments, "-o"))
    output.unlink(missing_ok=True)
    output.symlink_to(known_object)
    pathlib.Path(value_of(arguments, "-MF")).write_text(f"{output}:\n")


def main():
    builds, arguments = sys.argv[1:3], sys.argv[3:]
    output = os.path.relpath(value_of(arguments, "-o") or ".", builds[1])
    known = commands_of(builds[0]).get(output)
    if known is None:
        os.execvp(arguments[0], arguments)
    reuse(arguments, known, pathlib.Path(builds[0], output), builds)


if __name__ == "__main__":
    main()
