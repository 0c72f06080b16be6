#!/usr/bin/env python3
"""What docs/from-pytorch.md says, as rows of Python and C++, and as one C++ program that has all its lines.

    document.py DOCUMENT PROGRAM.cpp [README]      writes the program, if it has changed

- A row is one of a table whose header begins with "| Python | C++ |": some Python in code spans, and one line of C++.
- A block of C++ above a table of the same section holds what its lines use; one that has LOCKSTEP_OBJECT stands outside
  of functions, and one that has main() is a program of its own.
- The first cells of every other table that begins with "| Python |" are names that are not there.
- The first block of C++ of README is the last program; what it does not show is in readme_given.h.
"""

import dataclasses
import pathlib
import re
import sys

FENCE = re.compile(r"```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
HEADING = re.compile(r"^## (.*)$", re.MULTILINE)


@dataclasses.dataclass
class Row:
    number: int  # of the line in the document
    python: list
    cpp: str
    given: str  # the C++ that stands before it


@dataclasses.dataclass
class Document:
    rows: list
    absent: list  # code spans of Python
    declarations: list
    programs: list


class Malformed(Exception):
    pass


def cells_of(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def row_of(number, cells, given):
    """Malformed for what would not be tested."""
    python, cpp = SPAN.findall(cells[0]), SPAN.findall(cells[1])
    if not python or len(cpp) != 1 or SPAN.sub("", cells[1]).strip() or not cpp[0].endswith((";", "}")):
        raise Malformed(f"line {number}: a row has Python, and one line of C++ that ends with ; or }}")
    return Row(number, python, cpp[0], given)


def tables_of(text, first_line):
    """(header, [(line number, cells)]) of each table of a section."""
    header, rows = None, []
    for number, line in enumerate(text.splitlines(), start=first_line):
        if line.startswith("|"):
            if header is None:
                header = cells_of(line)
            elif not re.fullmatch(r"[|\s:-]+", line):
                rows.append((number, cells_of(line)))
        elif header is not None:
            yield header, rows
            header, rows = None, []
    if header is not None:
        yield header, rows


def read(text):
    document = Document([], [], [], [])
    starts = [match.start() for match in HEADING.finditer(text)] + [len(text)]
    for start, end in zip(starts, starts[1:]):
        section, given = text[start:end], ""
        for language, code in FENCE.findall(section):
            if language != "cpp":
                continue
            if "int main(" in code:
                document.programs.append(code)
            elif "LOCKSTEP_OBJECT" in code:
                document.declarations.append(code)
            else:
                given += code
        prose = FENCE.sub(lambda match: "\n" * match.group(0).count("\n"), section)
        for header, rows in tables_of(prose, text.count("\n", 0, start) + 1):
            if header[:2] == ["Python", "C++"]:
                document.rows += [row_of(number, cells, given) for number, cells in rows]
            elif header[0] == "Python":
                document.absent += [span for _, cells in rows for span in SPAN.findall(cells[0])]
    return document


def literal(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def program_of(document):
    """The text of the program. Lines that join a world themselves are run where none is joined."""
    includes = {"#include <chrono>", "#include <lockstep/lockstep.h>", '#include "run_lines.h"'}
    parts = []
    for number, program in enumerate(document.programs, start=1):
        includes |= set(re.findall(r"^#include .*$", program, re.MULTILINE))
        body = re.sub(r"^#include .*\n", "", program, flags=re.MULTILINE)
        arguments = "int argc, char** argv" if "int main(int" in body else "int, char**"
        body = re.sub(r"int main\(.*?\)", f"int main_of_program({arguments})", body)
        body = re.sub(r"}\s*\Z", "  return 0;\n}\n", body)  # which only main() may leave out
        parts.append(f"namespace program_{number} {{\n{body}}}\n")
    parts.append("using namespace std::chrono_literals;\nusing namespace given;\n")
    parts += document.declarations
    table = []
    for row in document.rows:
        parts.append(f"static void line_{row.number}() {{\n{row.given}{row.cpp}\n}}\n")
        where = "kAlone" if "init_process_group(" in row.cpp or "rendezvous({" in row.cpp else "kInWorld"
        table.append(f"    {{{row.number}, {literal(row.cpp)}, line_{row.number}, Where::{where}}},\n")
    programs = "".join(f"program_{number}::main_of_program, "
                       for number in range(1, len(document.programs) + 1))
    return ("".join(line + "\n" for line in sorted(includes)) + "\n" + "\n".join(parts) + "\n"
            + "int main(int argc, char** argv) {\n  return run_document(argc, argv, {\n" + "".join(table)
            + f"  }}, {{{programs}}});\n}}\n")


def first_program(readme):
    code = next(code for language, code in FENCE.findall(readme) if language == "cpp")
    return '#include "readme_given.h"\n' + code


def main(source, target, readme=None):
    document = read(pathlib.Path(source).read_text(encoding="utf-8"))
    if readme:
        document.programs.append(first_program(pathlib.Path(readme).read_text(encoding="utf-8")))
    program = program_of(document)
    target = pathlib.Path(target)
    if not target.exists() or target.read_text(encoding="utf-8") != program:
        target.write_text(program, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
