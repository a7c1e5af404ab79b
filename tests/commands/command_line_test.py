"""What holds for every command: help with examples, one line and exit code 2 for mistakes."""
import re
import shlex

import pytest

COMMANDS = re.compile(r"^  (\w+) {2,}\S", re.MULTILINE)


def commands_of(equitile, path=()):
    """Every command that can run, as a list of words: found through --help, so that new ones are tested too."""
    text = equitile(*path, "--help").out
    if "COMMAND --help shows" not in text:
        return [list(path)]
    names = COMMANDS.findall(text.partition("Commands:")[2])
    return [found for name in names for found in commands_of(equitile, (*path, name))]


def test_every_command_has_help_with_examples(equitile):
    commands = commands_of(equitile)
    assert ["inspect"] in commands
    for command in commands:
        outcome = equitile(*command, "--help")
        assert outcome.code == 0 and outcome.err == ""
        assert "Examples:\n  equitile " + " ".join(command) in outcome.out, outcome.out


def test_every_example_can_be_pasted(equitile):
    """A target that does not exist is noticed after everything else, before any work."""
    for command in commands_of(equitile):
        _, _, examples = equitile(*command, "--help").out.partition("Examples:\n")
        for line in examples.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True) if line.startswith("  ") else []  # else it is prose
            if not words:
                continue
            words = words[words.index("equitile") + 1 :]
            assert "mmx" in equitile(*words, EQUITILE_TARGET="mmx").err, line


def test_help_fits_80_columns(equitile):
    for command in [[], *commands_of(equitile)]:
        for line in equitile(*command, "--help").out.partition("Examples:")[0].splitlines():
            assert len(line) <= 80 or len(line.split()) == 1, line
            assert "{" not in line, line


def test_every_command_refuses_an_unknown_flag(equitile):
    for command in commands_of(equitile):
        equitile(*command, "--no-such-flag", "1").must_be_refused("--no-such-flag")
        equitile(*command, "--no-such-flag=1").must_be_refused("--no-such-flag ")


def test_every_command_prints_json(equitile):
    for command in commands_of(equitile):
        assert "--json" in equitile(*command, "--help").out


@pytest.mark.parametrize("args, mention", [
    ([], "which command?"), (["inspekt"], "did you mean inspect?"), (["inspect"], "file is required"),
    (["inspect", "a", "b"], "unexpected argument b"), (["inspect", "a", "b", "c"], "unexpected argument b c"),
    (["plan", "-x", "3"], "unknown flag -x"), (["plan", "-x3"], "unknown flag -x"), (["inspect", "a", "--json=maybe"], "--json maybe: must be true or false"),
    (["plan", "--kernel-gflops", "abc"], "--kernel-gflops abc: must be a number"), (["inspect", "a", "--layer"], "--layer: a value is missing"),
    (["inspect", "a", "--layer", "x"], "--layer x: must be a whole number"), (["inspect", "a", "-z"], "-z"),
    (["inspect", "a", "--layer", "1", "--layer", "x"], "--layer x: must be a whole number"),
])
def test_mistakes(equitile, args, mention):
    equitile(*args).must_be_refused(mention)


def test_the_last_of_a_repeated_flag_counts(equitile, data):
    mask = data / "vectors/one_h24_b64.mask.npy"
    once = equitile("inspect", mask, "--layer", 0)
    assert once.code == 0 and equitile("inspect", mask, "--layer", 7, "--layer", 0).out == once.out
    equitile("inspect", mask, "--layer", 0, "--layer", 7).must_be_refused("--layer 7")


def test_version(equitile):
    assert re.fullmatch(r"equitile \d+\.\d+\.\d+\n", equitile("--version").out)


def test_target_that_does_not_exist(equitile, data):
    mask = data / "vectors/one_h24_b64.mask.npy"
    equitile("inspect", mask, EQUITILE_TARGET="mmx").must_be_refused("mmx", "avx2")
    assert equitile("inspect", mask, EQUITILE_TARGET="portable").code == 0


def test_standard_output_that_cannot_be_written(equitile, data):
    import os
    import subprocess
    with open("/dev/full", "w") as full:
        done = subprocess.run([os.environ["EQUITILE"], "inspect", data / "vectors/one_h24_b64.mask.npy"], stdout=full,
                              stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
