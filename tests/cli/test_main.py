"""The command line: what it prints, what it exits with, and that a user never sees a traceback."""

import subprocess
import sys

import pytest

import fadeout.experiments
from fadeout.cli import main


def test_version(run):
    assert run("--version") == (0, f"fadeout {fadeout.__version__}\n", "")


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_help_lists_the_commands(run, arguments):
    code, output, complaint = run(*arguments)
    assert (code, complaint) == (0, "")
    assert "demo" in output
    assert "--version" in output
    assert "handwritten digits" in output


def test_help_of_a_command_lists_its_options(run):
    code, output, _ = run("demo", "--help")
    assert code == 0
    for option in ("--output", "--seed", "--quick"):
        assert option in output
    assert "usage: fadeout data [-h] [get NAME ...]" in run("data", "--help")[1]


def test_a_missing_file_is_said_without_a_number(run):
    assert run("inspect", "none.st") == (2, "", "fadeout: No such file or directory: 'none.st'\n")


def test_an_unknown_command_gets_the_nearest(run):
    assert run("dmeo") == (2, "", "fadeout: no command 'dmeo'; did you mean demo?\n")
    names = "demo, inspect, compact, export, data, list, run, reproduce, report"
    assert run("xyz") == (2, "", f"fadeout: no command 'xyz'; there are {names}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--seed", "many"], "--seed"),
        (["demo", "--seed", "-1"], "seed is a whole number from 0 to 2**32 - 1, got -1"),
        (["demo", "--sed", "1"], "--seed"),
        (["demo", "more"], "more"),
        (["--verbose"], "--verbose"),
    ],
)
def test_wrong_arguments(run, arguments, message):
    code, output, complaint = run(*arguments)
    assert (code, output) == (2, "")
    assert message in complaint
    assert "Traceback" not in complaint


@pytest.mark.parametrize("package", ["tyro", "rich", "matplotlib"])
def test_a_missing_package_names_the_extra(run, monkeypatch, package):
    for name in list(sys.modules):
        ours = ("fadeout.experiments.demo", "fadeout.experiments.report", "fadeout.cli.")
        if name == package or name.startswith((f"{package}.", *ours)):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(fadeout.experiments, "demo", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    wanted = f'fadeout: {package} is not installed: pip install "fadeout[experiments]"\n'
    assert run("demo", "--quick") == (1, "", wanted)
    assert run("--version")[0] == 0  # which needs nothing


def test_a_traceback_on_request(monkeypatch, capsys):
    monkeypatch.setenv("FADEOUT_TRACEBACK", "1")
    with pytest.raises(SystemExit) as end:
        main(["dmeo"])
    monkeypatch.delenv("FADEOUT_TRACEBACK")
    with pytest.raises(SystemExit) as other:
        main(["dmeo", "--traceback"])
    assert (end.value.code, other.value.code) == (2, 2)
    complaint = capsys.readouterr().err
    assert complaint.count("Traceback") == complaint.count("ValueError: no command 'dmeo'") == 2


def test_the_module_runs():
    done = subprocess.run([sys.executable, "-m", "fadeout", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"fadeout {fadeout.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (["--version"], "tyro rich matplotlib sklearn joblib PIL pooch fadeout.experiments"),
        (["inspect", "small.safetensors"], "rich matplotlib sklearn joblib PIL pooch fadeout.experiments"),
        (["list"], "matplotlib sklearn PIL pooch ray"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (["data"], "rich matplotlib sklearn joblib PIL ray"),
                (["reproduce", "cora", "--dry"], "matplotlib sklearn PIL ray"),
                (["run", "digits", "--help"], "matplotlib sklearn PIL ray"),
            )
        ),
    ],
)
def test_a_command_imports_only_what_it_needs(fresh, tmp_path, arguments, unwanted):
    fadeout.save(fadeout.models.smallcnn(), tmp_path / "small.safetensors")
    program = (
        "import sys; from fadeout.cli import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit as end: assert not end.code\n"
        f"print(*[name for name in {unwanted.split()!r} if name in sys.modules], file=sys.stderr)"
    )
    done = fresh(program, tmp_path)
    assert (done.returncode, done.stderr) == (0, "\n")
