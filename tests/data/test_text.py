"""Text features: no vocabulary is learned, so no text can leak into another's features."""

from pathlib import Path

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.data.sources.texts import ALPHABET, encode_letters
from coterie.data.text import TextFeatures, count_words, number_words


def test_a_texts_features_depend_on_the_text_alone() -> None:
    texts = ["My card is lost", "a fee", "LOST card, my card!"]
    for make in (lambda t: count_words(t, 64), lambda t: number_words(t, 5, 100)):
        together = make(texts)
        assert np.array_equal(together[1:2], make(texts[1:2]))


def test_a_bag_counts_words_whatever_their_case_and_has_length_one() -> None:
    made = count_words(["card card", "Card", ""], 64)
    assert np.array_equal(made[0], made[1])
    assert np.linalg.norm(made, axis=1).tolist() == pytest.approx([1, 1, 0])


def test_tokens_keep_the_last_words_and_pad_in_front() -> None:
    made = number_words(["one two three", "three", ""], 2, 1000)
    assert made[1, 0] == 0
    assert made[0, 1] == made[1, 1]
    assert made[2].tolist() == [0, 0]
    assert made[made > 0].min() >= 2
    assert number_words(["x"] * 3, 2, 1).max() == 2  # the smallest vocabulary has one word


def test_a_word_list_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("the\ncard\n")
    wording = TextFeatures("tokens", length=3, words=str(path))
    assert number_words(["the lost card"], 3, 9, {"the": 2, "card": 3}).tolist() == [[2, 1, 3]]
    assert wording.count_known_tokens() == 4
    before = wording.settings()
    path.write_text("the\nlost\ncard\n")
    assert wording.settings() != before  # features made with another list are decoded anew
    with pytest.raises(UserError, match="There is no file"):
        TextFeatures("tokens", words=str(tmp_path / "no.txt")).count_known_tokens()


def test_widths_are_checked() -> None:
    with pytest.raises(UserError, match="Data set 'x': width=0 should be at least 1"):
        TextFeatures(width=0).check("Data set 'x'")


def test_letters() -> None:
    assert len(ALPHABET) == len(set(ALPHABET)) == 81
    assert "".join(ALPHABET[c] for c in encode_letters("Ay, $3\nè~")) == "Ay, $3\n"
