from loadchaos.simulator.engine import tokenizer
from loadchaos.simulator.engine.answers import AnswerText, ordered_opening


def test_answer_text_read_in_pieces_is_the_same() -> None:
    whole, pieces = AnswerText(7), AnswerText(7)
    assert whole.next_text(10) == pieces.next_text(3) + pieces.next_text(7)


def test_ordered_opening_repeats_the_word_of_the_prompt() -> None:
    ids = tokenizer.encode(
        "<|im_start|>user\nRepeat this word 3 times, with blanks between: canary-0123456789<|im_end|>\n"
    )
    for size in (1, 4, 60):
        answer = AnswerText(7, ordered_opening(ids))
        text = "".join(answer.next_text(size) for _ in range(60 // size))
        assert text.startswith("canary-0123456789 canary-0123456789 canary-0123456789 ")


def test_ordered_opening_is_empty_for_other_prompts() -> None:
    assert ordered_opening(tokenizer.encode("Describe this picture")) == ()
    assert ordered_opening(tokenizer.encode("Repeat this word 3 times: yes " + "and so on " * 100)) == ()


def test_derailed_answer_is_wrong_after_the_given_token() -> None:
    right, wrong = AnswerText(7), AnswerText(7)
    wrong.spoil("derailed", after=4)
    assert wrong.next_text(2) == right.next_text(2)
    assert wrong.next_text(2) == right.next_text(2)
    assert wrong.next_text(6) != right.next_text(6)
