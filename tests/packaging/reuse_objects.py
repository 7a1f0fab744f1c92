"""A compiler launcher that takes the library's objects from another build.

    reuse_objects.py BUILD TESSERA_BUILD COMPILER ARGUMENT...

Compiling the library again takes minutes, and the same command makes the same
object. So a source that BUILD has compiled is not compiled again: its command
must be the same here, but for the folder that it is compiled in and -Werror,
and then its object is taken. Another command is an error that shows both. A
source that BUILD does not know is compiled.
"""

import json
import os
import pathlib
import shlex
import shutil
import sys


def value_of(arguments, flag):
    return arguments[arguments.index(flag) + 1] if flag in arguments else None


def essence(arguments, build):
    """The arguments that shape the object, with the build folder as @BUILD@."""
    kept, skip = [], False
    for argument in arguments:
        if skip or argument in ("-o", "-MF", "-MT", "-MQ"):
            skip = not skip
        elif argument not in ("-Werror", "-MD"):
            kept.append(argument.replace(build, "@BUILD@"))
    return kept


def commands_of(build):
    """{source: (arguments from the compiler on, object)} of a build folder."""
    commands = {}
    entries = json.loads(pathlib.Path(build, "compile_commands.json").read_text())
    for entry in entries:
        arguments = shlex.split(entry["command"])
        source = entry["file"].replace(build, "@BUILD@")
        output = value_of(arguments, "-o")
        commands[source] = arguments, pathlib.Path(entry["directory"], output)
    return commands


def reuse(arguments, known, known_object, builds):
    ours, theirs = essence(arguments, builds[1]), essence(known, builds[0])
    theirs = theirs[theirs.index(ours[0]):]
    if ours != theirs:
        sys.exit("reuse_objects: other flags than in the main build:\n"
                 f"here {shlex.join(ours)}\nmain {shlex.join(theirs)}")
    output = pathlib.Path(value_of(arguments, "-o"))
    output.unlink(missing_ok=True)
    try:
        os.link(known_object, output)
    except OSError:
        shutil.copy2(known_object, output)
    os.utime(output)
    pathlib.Path(value_of(arguments, "-MF")).write_text(f"{output}:\n")


def main():
    builds, arguments = sys.argv[1:3], sys.argv[3:]
    source = (value_of(arguments, "-c") or "").replace(builds[1], "@BUILD@")
    known = commands_of(builds[0]).get(source)
    if known is None:
        os.execvp(arguments[0], arguments)
    reuse(arguments, *known, builds)


if __name__ == "__main__":
    main()
