"""A method reads its fields, options and description off the function of its phases."""

from typing import Annotated, Literal

from fadeout.methods.method import Method, Option, Phase


def test_options_are_the_arguments_with_a_default():
    def phases(
        epochs: int,
        sparsity: float,
        speed: Annotated[Literal["slow", "fast"], "how fast"] = "slow",
        rate: Annotated[float | None, "how much"] = None,
    ) -> list[Phase]:
        """Do as told.

        And more.
        """
        return [Phase(speed, epochs, remove=sparsity, lr=rate)]

    method = Method("told", phases, label="told", colour="#000000")
    assert method.fields == ["epochs", "sparsity", "speed", "rate"]
    assert method.options == {
        "speed": Option(Literal["slow", "fast"], "slow", "how fast"),
        "rate": Option(float | None, None, "how much"),
    }
    assert method.summary == "Do as told."
    assert method.phases(3, 0.5) == [Phase("slow", 3, remove=0.5)]


def test_a_method_without_options():
    assert Method("none", lambda epochs: [], label="none", colour="#000000").options == {}
