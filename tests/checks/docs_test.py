"""The docs and the tree agree: every relative link leads to a file (and to a heading there), and every option of
`lockstep` that the docs name exists.

    docs_test.py COMMAND [unittest arguments]      COMMAND is the `lockstep` program
"""

import importlib.util
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = ""

sys.dont_write_bytecode = True
spec = importlib.util.spec_from_file_location("check_layers", ROOT / "tools" / "check_layers.py")
check_layers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_layers)

# Where an option in code is one of `lockstep`.
OPTION_DOCUMENTS = ["README.md", "CONTRIBUTING.md", "docs/from-pytorch.md", "docs/launching.md"]

LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+(?:\([^()]*\))?)(?:\s+\"[^\"]*\")?\)")
REFERENCE = re.compile(r"^\[[^\]]+\]:\s+(\S+)", re.MULTILINE)
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE_SPAN = re.compile(r"`([^`\n]+)`")


def documents(root):
    """The Markdown files of the tree, without what is built or downloaded into it."""
    for path in sorted(root.rglob("*.md")):
        folders = path.relative_to(root).parts[:-1]
        if not any(name.startswith((".", "build")) for name in folders):
            yield path


def anchors(text):
    """The names that GitHub gives to the headings of a document."""
    names = set()
    for heading in re.findall(r"^#+\s+(.*?)\s*#*$", FENCE.sub("", text), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.lower().replace("`", "")).replace(" ", "-")
        count = sum(1 for other in names if re.fullmatch(re.escape(name) + r"(-\d+)?", other))
        names.add(f"{name}-{count}" if count else name)
    return names


def broken_links(document):
    """Each link of the document that leads nowhere, with why."""
    text = document.read_text(encoding="utf-8")
    prose = CODE_SPAN.sub("", FENCE.sub("", text))
    for target in LINK.findall(prose) + REFERENCE.findall(prose):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue  # http, mailto: not ours to check
        path, _, anchor = target.partition("#")
        file = (document.parent / path) if path else document
        if not file.exists():
            yield f"{target}: there is no such file"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text(encoding="utf-8")):
            yield f"{target}: there is no such heading"


def without_foreign_columns(text):
    """Tables whose first column is headed by another program list that program's options there."""
    foreign, lines = False, []
    for line in text.splitlines():
        cells = line.split("|")
        if not line.startswith("|"):
            foreign = False
        elif not foreign and re.fullmatch(r"\s*`?torchrun`?\s*", cells[1]):
            foreign = True
        lines.append("|".join(cells[2:]) if foreign else line)
    return "\n".join(lines)


def code_lines(text):
    """Every line of code and every code span of a document; lines that end in a backslash are joined."""
    for fence in FENCE.finditer(text):
        yield from fence.group(0).replace("\\\n", " ").splitlines()[1:-1]
    yield from CODE_SPAN.findall(FENCE.sub("", text))


def named_options(line):
    """(words of the command, options) that a line of code names; an option on its own has no command."""
    line = line.split(" #")[0]
    try:
        tokens = shlex.split(line)
    except ValueError:
        tokens = line.split()
    if tokens and tokens[0].startswith("--"):
        return [], [tokens[0]]
    starts = [i for i, token in enumerate(tokens) if token.rsplit("/")[-1] == "lockstep"]
    if not starts:
        return [], []
    command, options = [], []
    for token in tokens[starts[0] + 1:]:
        if token in ("|", ";", "&&", "--") or token.startswith("./") or token.endswith(".py"):
            break  # the program that is run, and its own options
        if token.startswith("--"):
            options.append(token)
        elif not options and re.fullmatch(r"[a-z]+", token):
            command.append(token)
    return command, options


def plain(option):
    """Without a value, and as completion offers it: torchrun's underscores are understood too."""
    return re.match(r"--[a-z0-9_-]+", option).group(0).replace("_", "-")


class Modules(unittest.TestCase):
    def test_the_log_knows_every_module_and_the_docs_name_it(self):
        """LOCKSTEP_LOG=MODULE=LEVEL warns of a name that no layer has."""
        source = (ROOT / "src/lockstep/base/log.cpp").read_text(encoding="utf-8")
        known = re.findall(r'"(\w+)"', re.search(r"kModules\[\] = \{(.*?)\};", source, re.DOTALL).group(1))
        used = {name for path in (ROOT / "src").rglob("*") if path.suffix in (".h", ".cpp") and "_test" not in path.name
                for name in re.findall(r'^(?:inline )?constexpr (?:base::)?Logger \w+\("(\w+)"\)',
                                       path.read_text(encoding="utf-8"), re.MULTILINE)}
        self.assertEqual(set(known), used)
        documented = (ROOT / "docs" / "debugging.md").read_text(encoding="utf-8")
        for name in known:
            self.assertIn(f"`{name}`", documented)


class Tree:
    """The options of every command, by its words."""

    def __init__(self, command):
        self.command = command
        self.options = {}
        self.walk([])

    def words(self, typed):
        answer = subprocess.run([self.command, "completion", "words"], input="".join(w + "\0" for w in typed),
                                capture_output=True, text=True, timeout=200, check=True)
        return [line.split("\t")[0] for line in answer.stdout.splitlines()]

    def walk(self, path):
        self.options[tuple(path)] = set(self.words([*path, "--"]))
        for name in self.words([*path, ""]):
            self.walk([*path, name])

    def unknown(self, text):
        """What the text names that does not exist."""
        everything = set().union(*self.options.values())
        for line in code_lines(without_foreign_columns(text)):
            command, options = named_options(line)
            while command and tuple(command) not in self.options:
                command = command[:-1]
            known = self.options[tuple(command)] if command else everything
            for option in options:
                if plain(option) not in known:
                    yield f"{' '.join(['lockstep', *command])} {option}"


class CheckersCanFail(unittest.TestCase):
    def broken(self, text):
        with tempfile.TemporaryDirectory() as folder:
            document = pathlib.Path(folder, "a.md")
            document.write_text(text, encoding="utf-8")
            pathlib.Path(folder, "b.md").write_text("# One Two\n## It's `x`!\n", encoding="utf-8")
            return list(broken_links(document))

    def test_a_link_to_a_file_or_heading_that_is_not_there(self):
        self.assertEqual(self.broken("[x](c.md)"), ["c.md: there is no such file"])
        self.assertEqual(self.broken("[x](b.md#three)"), ["b.md#three: there is no such heading"])
        self.assertEqual(self.broken("[x]: c.md"), ["c.md: there is no such file"])
        self.assertEqual(self.broken("[x](#nowhere)"), ["#nowhere: there is no such heading"])

    def test_good_links_and_code_are_left_alone(self):
        self.assertEqual(self.broken("[x](b.md) [y](b.md#one-two) [z](b.md#its-x) [w](https://a.b/c.md)"), [])
        self.assertEqual(self.broken("`[x](c.md)`\n```\n[x](c.md)\n```\n"), [])

    def test_options_are_read_from_code(self):
        self.assertEqual(named_options("lockstep run --nproc 4 ./train --epochs 3"), (["run"], ["--nproc"]))
        self.assertEqual(named_options("srun --ntasks 4 build/bin/lockstep run --tee 3 x.py --lr 1"),
                         (["run"], ["--tee"]))
        self.assertEqual(named_options("--nproc auto|N"), ([], ["--nproc"]))
        self.assertEqual(named_options("torchrun --nproc-per-node 4 x.py"), ([], []))

    def test_the_column_of_another_program_is_not_ours(self):
        tree = Tree(COMMAND)
        table = "| {} | ours |\n|---|---|\n| `--start-method` | `--frobnicate` |\n"
        self.assertEqual(list(tree.unknown(table.format("torchrun"))), ["lockstep --frobnicate"])
        self.assertEqual(len(list(tree.unknown(table.format("option")))), 2)

    def test_an_option_that_does_not_exist(self):
        tree = Tree(COMMAND)
        self.assertEqual(list(tree.unknown("`lockstep doctor --jsno`")), ["lockstep doctor --jsno"])
        self.assertEqual(list(tree.unknown("`--frobnicate`")), ["lockstep --frobnicate"])
        self.assertEqual(list(tree.unknown("```\nlockstep doctor \\\n  --json\n```\n")), [])


def layer_rows(text):
    """{layer: the layers that it may include} from the table of docs/architecture.md; None means anything."""
    rows = {}
    for line in re.search(r"^## Layers$(.*?)^## ", text, re.MULTILINE | re.DOTALL).group(1).splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        folder = re.match(r"\[(\w+)/\]\(\.\./src/lockstep/", cells[1]) if len(cells) > 5 else None
        if folder:
            words = set(re.findall(r"\w+", cells[3]))
            rows[folder.group(1)] = None if "anything" in words else words & set(check_layers.LAYERS)
    return rows


class Architecture(unittest.TestCase):
    def test_its_table_has_every_layer_of_the_tree_and_says_what_the_layer_check_enforces(self):
        rows = layer_rows((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
        built = (ROOT / "src" / "lockstep" / "CMakeLists.txt").read_text(encoding="utf-8")
        folders = set(re.findall(r"add_subdirectory\((\w+)\)", built))
        self.assertEqual(set(rows), folders, "the table 'Layers' of docs/architecture.md has one row for each folder")
        for layer, may_include in rows.items():
            enforced = check_layers.LAYERS[layer]
            self.assertEqual(may_include, None if enforced is None else set(enforced), layer)


class Docs(unittest.TestCase):
    def test_every_relative_link_leads_somewhere(self):
        broken = [f"{document.relative_to(ROOT)}: {why}" for document in documents(ROOT)
                  for why in broken_links(document)]
        self.assertEqual(broken, [])

    def test_every_failure_is_explained(self):
        header = (ROOT / "src" / "lockstep" / "base" / "status.h").read_text(encoding="utf-8")
        names = set(re.findall(r"\bk[A-Z]\w+", header.split("enum class Failure")[1].split("}")[0])) - {"kNone"}
        self.assertIn("kPeerDied", names)
        text = (ROOT / "docs" / "failures.md").read_text(encoding="utf-8")
        self.assertEqual([name for name in sorted(names) if f"`{name}`" not in text], [])

    def test_every_option_of_lockstep_exists(self):
        tree = Tree(COMMAND)
        unknown = [f"{document.relative_to(ROOT)}: {option}" for document in documents(ROOT)
                   for option in tree.unknown(document.read_text(encoding="utf-8"))
                   if document.relative_to(ROOT).as_posix() in OPTION_DOCUMENTS]
        self.assertEqual(unknown, [])


if __name__ == "__main__":
    COMMAND = sys.argv.pop(1)
    unittest.main()
