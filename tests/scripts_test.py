"""scripts/ as a user calls them. Nothing here installs or compiles: that has happened before tests run."""
import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ROOT / "scripts/packages.txt"


def run(*command, **options):
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, **options)


def test_every_package_has_a_reason():
    for line in PACKAGES.read_text().splitlines():
        assert not line or line.startswith("#") or re.fullmatch(r"[a-z0-9+.-]+ +# \S.*", line), line


def fake_debian(folder, installed):
    """A PATH with a dpkg-query that knows `installed`, and an apt-get that writes down what it is asked."""
    folder.mkdir()
    known = "".join(f"ii {package}\\n" for package in installed)
    (folder / "dpkg-query").write_text(f"#!/bin/sh\nprintf '{known}'\nexit 1\n")
    (folder / "apt-get").write_text(f"#!/bin/sh\necho \"$@\" >> {folder}/asked\n")
    for name in ("dpkg-query", "apt-get"):
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def copy_of_scripts(folder):
    """setup writes its log beside the scripts' folder, so the tests use a copy."""
    run("cp", "-r", str(ROOT / "scripts"), str(folder / "scripts"), check=True)
    return folder / "scripts"


def packages():
    return [line.split()[0] for line in PACKAGES.read_text().splitlines() if line and not line.startswith("#")]


def test_setup_does_nothing_when_all_is_there(tmp_path):
    scripts = copy_of_scripts(tmp_path)
    environment = fake_debian(tmp_path / "bin", packages())
    done = run(scripts / "setup", env=environment)
    assert done.returncode == 0 and "nothing to do" in done.stderr
    assert run(scripts / "setup", "--quiet", env=environment).stderr == ""
    assert not (tmp_path / "bin/asked").exists()


def test_setup_installs_what_is_missing(tmp_path):
    if os.geteuid() != 0:
        return  # would ask for a password
    scripts = copy_of_scripts(tmp_path)
    missing = packages()[1:3]
    environment = fake_debian(tmp_path / "bin", [name for name in packages() if name not in missing])
    done = run(scripts / "setup", env=environment)
    assert done.returncode == 0, done.stderr
    update, install = (tmp_path / "bin/asked").read_text().splitlines()
    assert update.endswith("update") and install.endswith(" ".join(missing))


def test_setup_says_what_it_needs_when_it_may_not(tmp_path):
    scripts = copy_of_scripts(tmp_path)
    text = (scripts / "setup").read_text().replace("((EUID != 0))", "((1))").replace("command -v sudo", "command -v no-such-sudo")
    (scripts / "setup").write_text(text)
    done = run(scripts / "setup", env=fake_debian(tmp_path / "bin", packages()[1:]))
    assert done.returncode == 1
    assert done.stderr == f"equitile: setup: needs root or sudo to install: {packages()[0]}\n"


def test_build_says_how_far_it_is_without_a_terminal(tmp_path):
    scripts = copy_of_scripts(tmp_path)
    (scripts / "build").write_text((scripts / "build").read_text().replace("seconds=30", "seconds=1").replace("pause 2\n", "pause 1\n"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/cmake").write_text("#!/bin/sh\necho '[7/42] Building CXX object a.o'\nsleep 4\n")
    (tmp_path / "bin/cmake").chmod(0o755)
    (tmp_path / "build/release").mkdir(parents=True)
    (tmp_path / "build/release/build.ninja").touch()
    (tmp_path / "CMakePresets.json").touch()
    os.utime(tmp_path / "CMakePresets.json", (0, 0))
    (tmp_path / "build/release/CMakeCache.txt").write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={tmp_path}\n")
    done = run(scripts / "build", env={**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "EQUITILE_WERROR": ""})
    lines = done.stderr.splitlines()
    assert done.returncode == 0 and len(lines) >= 2 and set(lines) == {"equitile: building release [7/42]"}, done.stderr


def test_run_finds_the_program_from_anywhere(tmp_path):
    which = run(ROOT / "scripts/run", "--which", cwd=tmp_path)
    assert which.returncode == 0, which.stderr
    program = pathlib.Path(which.stdout.strip())
    assert program.is_absolute() and os.access(program, os.X_OK)
    assert run(ROOT / "scripts/run", "--version", cwd=tmp_path).stdout == run(program, "--version").stdout


def test_run_is_the_program(tmp_path):
    """Arguments, folder and exit code pass through."""
    done = run(ROOT / "scripts/run", "inspect", "no such file.npy", cwd=tmp_path)
    assert done.returncode == 2 and "no such file.npy" in done.stderr


def test_several_copies_at_once():
    copies = [subprocess.Popen([ROOT / "scripts/run", "--version"], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert len({copy.communicate(timeout=300)[0] for copy in copies}) == 1
    assert all(copy.returncode == 0 for copy in copies)
