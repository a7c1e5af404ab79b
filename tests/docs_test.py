"""Checks that what documents and comments name is there: source files, pages, scripts, and tests called `Suite.Test`."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOPS = ("equitile", "apps", "python", "bench", "cmake", "docs", "scripts", "tests")

PATH = re.compile(r"(?<![\w%*])[\w./-]*[\w-]\.(?:h|cc|py|md|cmake|svg|png|xml)\b")
TEST = re.compile(r"`([A-Z]\w+)\.([A-Z]\w+)`")
# Headers from outside, and names that stand for any.
NOT_OURS = re.compile(r"mpi\.h|thing(_\w+)?\.cc")


def prose(root):
    """(file, line number, text) of every line of a document and every comment of a source. CHANGELOG.md tells of what was."""
    for document in sorted({*root.glob("*.md"), *(root / "docs").rglob("*.md")} - {root / "CHANGELOG.md"}):
        for number, line in enumerate(document.read_text().splitlines(), start=1):
            yield document, number, line
    for source in sorted(path for top in TOPS for path in (root / top).rglob("*") if path.suffix in (".h", ".cc")):
        for number, line in enumerate(source.read_text().splitlines(), start=1):
            comment = re.search(r"(?<!:)//(.*)", line)
            if comment:
                yield source, number, comment[1]


def exists(root, file, name):
    """From the file's folder, from the top, or from a place that everybody knows: `kernel/simd/gemm-inl.h`, `plan.h`."""
    places = [file.parent, root, root / "equitile"]
    if any((place / name).exists() for place in places):
        return True
    return "/" not in name and any(next((root / top).rglob(name), None) for top in TOPS if (root / top).is_dir())


def missing(root):
    """One line per name that leads nowhere: file:line: name."""
    sources = [path for top in TOPS for path in (root / top).rglob("*_test.cc")]
    tests = {match for path in sources for match in re.findall(r"TEST\w*\(\s*(\w+),\s*(\w+)\)", path.read_text())}
    found = []
    for file, number, line in prose(root):
        text = re.sub(r"https?://\S+", "", line)
        names = [name for name in PATH.findall(text) if not NOT_OURS.fullmatch(name) and not exists(root, file, name)]
        names += [".".join(test) for test in TEST.findall(text) if test not in tests]
        found += [f"{file.relative_to(root)}:{number}: {name}" for name in names]
    return found


def test_documents_name_what_is_there():
    found = missing(ROOT)
    assert not found, "\n" + "\n".join(found)


def test_planted_names_are_found(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "equitile/kernel/simd").mkdir(parents=True)
    (tmp_path / "equitile/kernel/simd/gemm-inl.h").write_text('#include "kernel/none.h"\nint a;  // see pack.cc, gemm_test.cc\n')
    (tmp_path / "equitile/kernel/simd/gemm_test.cc").write_text("TEST_P(GemmTest, Tails) {\n")
    (tmp_path / "docs/page.md").write_text(
        "`kernel/simd/gemm-inl.h`, `gemm-inl.h`, `GemmTest.Tails`, <mpi.h>\n"
        "(`kernel/gemm.h`) [page](page.md)\n"
        "`GemmTest.Heads` and [other](other.md).\n")
    assert missing(tmp_path) == ["docs/page.md:2: kernel/gemm.h", "docs/page.md:3: other.md", "docs/page.md:3: GemmTest.Heads",
                                 "equitile/kernel/simd/gemm-inl.h:2: pack.cc"]
