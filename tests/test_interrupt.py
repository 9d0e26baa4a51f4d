"""Ctrl-C before a command has begun."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fadeout import _interrupt

SOURCE = Path(_interrupt.__file__).parents[1]
STOPPED = (130, "", "fadeout: stopped\n")


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Run Python with a torch that is interrupted while it is imported, and is none if it goes on."""
    (tmp_path / "torch.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('goes on')\nraise SystemExit(3)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{SOURCE}")

    def run(*words, handler=signal.SIG_DFL):
        done = subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            preexec_fn=lambda: signal.signal(signal.SIGINT, handler),
        )
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.parametrize(
    "words", [["-m", "fadeout"], ["-mfadeout", "list"], ["-X", "utf8", "-m", "fadeout", "list"]]
)
def test_a_command_ends_with_a_word(start, words):
    assert start(*words) == STOPPED


def test_the_installed_script_ends_with_a_word(start, tmp_path):
    script = tmp_path / "bin" / "fadeout"
    script.parent.mkdir()
    script.write_text("from fadeout.cli import main\nmain()\n")
    assert start(script, "list") == STOPPED


def test_other_programs_get_the_exception(start, tmp_path):
    program = tmp_path / "train.py"
    program.write_text("try:\n    import fadeout\nexcept KeyboardInterrupt:\n    print('caught')\n")
    assert start(program, "fadeout") == (0, "caught\n", "")
    assert start("-m", "train", "fadeout") == (0, "caught\n", "")
    program.write_text(f"import sys\nsys.argv.pop()\n{program.read_text()}")  # python train.py METHOD
    assert start(program, "fadeout") == (0, "caught\n", "")


def test_processes_of_a_program_with_many_arguments_import_it(tmp_path, monkeypatch):
    """As far as torch, that is: what is asked of the arguments comes before."""
    (tmp_path / "torch.py").write_text("print('goes on')\nraise SystemExit(3)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{SOURCE}")
    (tmp_path / "task.py").write_text("def task():\n    from fadeout import _interrupt\n")
    program = tmp_path / "train.py"
    program.write_text(
        "import multiprocessing, task\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=task.task)\n"
        "    child.start()\n"
        "    child.join()\n"
        "    raise SystemExit(child.exitcode)\n"
    )
    done = subprocess.run([sys.executable, program, *"abcdefgh"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, "goes on\n", "")


def test_who_ignores_ctrl_c_goes_on(start):
    assert start("-m", "fadeout", "list", handler=signal.SIG_IGN) == (3, "goes on\n", "")


def test_a_command_that_has_begun_gets_the_exception(run, monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/fadeout", "list"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "/usr/bin/fadeout", "list"])
    monkeypatch.setattr("fadeout.cli._run", lambda words: signal.raise_signal(signal.SIGINT))
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _interrupt.end_quietly()
        assert signal.getsignal(signal.SIGINT) is _interrupt._end
        assert run("list") == STOPPED
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
