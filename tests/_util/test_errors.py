"""Sentences for users: flags on the command line, arguments in Python."""

import pytest

import coterie as ct
from coterie._util.errors import ON_COMMAND_LINE, UserError, replace_flags


@pytest.mark.parametrize(
    ("flags", "arguments"),
    [
        ("use --cohort 4 or fewer.", "use cohort=4 or fewer."),
        ("choose another --out.", "choose another out=."),
        ("continue it with --resume.", "continue it with resume=True."),
        ("use --batch 2.", "use batch_size=2."),
        ("point --data-dir to the data", "point data_dir= to the data"),
        ("give --seeds 0 or a range such as 0-4.", "give seeds=0 or a range such as 0-4."),
        ("resume it with 'coterie launch --resume', or give --out.", "resume it with 'coterie launch --resume', or give out=."),
        ("a rate of 1e-5 -- which is low", "a rate of 1e-5 -- which is low"),
    ],
)
def test_flags_become_arguments(flags: str, arguments: str) -> None:
    assert replace_flags(flags) == arguments


def test_an_error_names_flags_only_on_the_command_line() -> None:
    with pytest.raises(UserError) as caught:
        ct.study("fedavg", data="heart", cohort=9, rounds=1)
    assert "use cohort=4 or fewer" in str(caught.value)
    token = ON_COMMAND_LINE.set(True)
    try:
        assert "use --cohort 4 or fewer" in str(caught.value)
    finally:
        ON_COMMAND_LINE.reset(token)


def test_the_public_names_are_all_that_dir_shows() -> None:
    assert dir(ct) == sorted([*ct.__all__, "__version__"])
