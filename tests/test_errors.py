"""errors.py: what a message to the user holds."""

import pytest

from dicerl import errors


def test_a_config_error_names_the_field_the_value_and_what_would_be_right():
    error = errors.ConfigError("loss.q", "x", "it must be a finite number")
    assert str(error) == "loss.q is 'x'; it must be a finite number"
    assert error.field == "loss.q"


@pytest.mark.parametrize(
    "kind", [errors.ConfigError, errors.CheckpointError, errors.EnvironmentFailed]
)
def test_every_error_is_one_the_command_line_shows_without_a_traceback(kind):
    assert issubclass(kind, errors.DicerlError)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("pnog", "; did you mean pong?"),
        ("PONG", "; did you mean pong?"),
        ("mspacman", "; did you mean MsPacman?"),  # as it is written among the known ones
        ("xyz", ""),
        ("", ""),
    ],
)
def test_the_nearest_known_word_is_proposed(word, text):
    assert errors.nearest(word, ["pong", "breakout", "MsPacman"]) == text


def test_nothing_is_proposed_where_nothing_is_known():
    assert errors.nearest("pong", []) == ""


def test_what_a_terminal_would_obey_is_written_out():
    assert errors.printable("é × 水 [red]") == "é × 水 [red]"
    assert errors.printable("a\x1b[2J\r\n\x9b\u202e\udcff") == r"a\x1b[2J\r\n\x9b\u202e\udcff"


def test_a_long_value_is_cut():
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    for value in ("x" * 100_000, nested, 10**5000):
        assert len(str(errors.ConfigError("seed", value, "no"))) < 600


def test_what_somebody_s_code_raised_is_told_in_one_line():
    class Wordless(Exception):
        def __str__(self):
            raise RuntimeError

    assert errors.told(ValueError("a\n b")) == "ValueError: a b"
    assert errors.told(Wordless()) == "Wordless: it cannot be shown"
    assert len(errors.told(ValueError("x" * 10_000))) < 600
