from __future__ import annotations

from collections import Counter

from test_support.arithmetic import CLASSES, FEW_SHOT, generate_problems


def test_questions_differ_and_classes_are_even() -> None:
    asked = generate_problems(300, seed=7)
    assert len({one.question for one in asked}) == len({one.id for one in asked}) == 300
    assert set(Counter(one.class_name for one in asked).values()) == {300 // len(CLASSES)}
    assert not {one.question for one in asked} & {shot for shot, _ in FEW_SHOT}


def test_the_same_seed_gives_the_same_and_another_gives_others() -> None:
    assert generate_problems(60, seed=1) == generate_problems(60, seed=1)
    assert generate_problems(60, seed=1) != generate_problems(60, seed=2)


def test_answers_are_right() -> None:
    for one in generate_problems(200, seed=3):
        if one.class_name.startswith(("add", "subtract", "multiply")):
            left, sign, right = one.question.removeprefix("What is ").rstrip("?").split()
            value = {"+": int(left) + int(right), "-": int(left) - int(right)}
            assert int(one.gold) == value.get(sign, int(left) * int(right))


def test_a_class_that_is_used_up_leaves_room_for_the_others() -> None:
    asked = generate_problems(1500, seed=1)
    assert len({one.question for one in asked}) == 1500
    assert (
        Counter(one.class_name for one in asked)["half"] == 39 - 1
    )  # one of them is a worked example
