"""The environment alone, without a model."""

import asyncio
from collections import Counter
from io import BytesIO
from itertools import islice

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from rlhf_core.contracts import Action, Stop, Task, Uid
from rlhf_env_shapes.config import ShapesConfig
from rlhf_env_shapes.environment import NUM_EVAL, Shapes
from rlhf_env_shapes.scenes import COLORS, GRAY, KINDS, PLACES, Scene

SCENE = Scene(color="blue", kind="square", places=(0, 3), gray=(1,))
WHITE = (255, 255, 255)


def play(answers, *, question="color", scene=SCENE, **options):
    """First observation and results of an episode in which the policy writes ``answers``."""
    row = {"scene": scene.fields(), "question": question}

    async def episode():
        environment = Shapes(ShapesConfig(**options))
        first = await environment.reset(Task(uid=Uid(0, 0), row=row), 0)
        results = []
        for turn, text in enumerate(answers):
            action = Action(text=text, token_ids=(), stop=Stop.EOS, turn=turn)
            results.append(await environment.step(action))
        return first, results

    return asyncio.run(episode())


def image_of(observation):
    parts = observation.messages[0]["content"]
    files = [part["image"] for part in parts if part["type"] == "image"]
    return Image.open(BytesIO(files[0])) if files else None


def colors_of(image):
    return {tuple(map(int, pixel)) for pixel in np.unique(np.asarray(image).reshape(-1, 3), axis=0)}


@pytest.mark.parametrize(
    ("question", "right", "wrong"),
    [
        ("color", ["blue", "It is Blue."], ["red", "blue or red", "", "bluer"]),
        ("number", ["2", "There are 2."], ["3", "2 or 3", "two"]),
        ("place", ["top left", "bottom right"], ["top right", "top left, top right"]),
        ("kind", ["square"], ["circle", "a square circle"]),
    ],
)
def test_one_right_word_is_an_answer(question, right, wrong):
    for text in right:
        assert play([text], question=question)[1][0].reward == 1.0, text
    for text in wrong:
        assert play([text], question=question)[1][0].reward == 0.0, text


@pytest.mark.parametrize(
    ("question", "right"),
    [("color", "b"), ("number", "2"), ("place", "0"), ("place", "3"), ("kind", "s")],
)
def test_letters_are_answers_for_a_tiny_model(question, right):
    assert play([right], question=question, style="letters")[1][0].reward == 1.0
    assert play(["x"], question=question, style="letters")[1][0].reward == 0.0


def test_an_image_shows_the_scene():
    first, _ = play([], size=64)

    image = image_of(first)

    assert image.size == (64, 64)
    assert colors_of(image) == {WHITE, COLORS["blue"], GRAY}
    middles = [image.getpixel((32 * (n % 2) + 16, 32 * (n // 2) + 16)) for n in range(4)]
    assert middles == [COLORS["blue"], GRAY, WHITE, COLORS["blue"]]


def test_zooming_is_the_only_way_to_the_color():
    first, results = play(["zoom bottom right", "blue"], zoom=True, questions=("color",))

    assert COLORS["blue"] not in colors_of(image_of(first))
    assert COLORS["blue"] in colors_of(image_of(results[0].observation))
    assert [result.done for result in results] == [False, True]
    assert results[1].reward == 1.0
    assert results[1].metrics == {"right": 1.0, "zoomed": 1.0}


def test_a_share_of_the_scenes_of_training_shows_its_colors_at_once():
    def shown_in_gray(row):
        environment = Shapes(ShapesConfig(zoom=True, zoom_share=0.7, questions=("color",)))
        first = asyncio.run(environment.reset(Task(uid=Uid(0, 0), row=row), 0))
        return colors_of(image_of(first)) == {WHITE, GRAY}

    options = ShapesConfig(zoom=True, zoom_share=0.7, questions=("color",))
    rows = list(islice(Shapes(options).tasks("train"), 400))
    held_out = list(islice(Shapes(options).tasks("eval"), 40))

    assert 240 < sum(row["in_gray"] for row in rows) < 320
    assert [shown_in_gray(row) for row in rows[:40]] == [row["in_gray"] for row in rows[:40]]
    assert all(map(shown_in_gray, held_out))


def test_a_second_zoom_is_an_answer_and_a_wrong_one():
    _, results = play(["3", "3"], zoom=True, questions=("color",), style="letters")

    assert [result.done for result in results] == [False, True]
    assert results[1].reward == 0.0


def test_the_control_sees_nothing():
    first, _ = play([], image=False)

    assert image_of(first) is None


@pytest.mark.parametrize(
    "options", [{}, {"style": "letters"}, {"zoom": True, "questions": ("color",)}]
)
def test_the_oracle_is_right_for_every_task(options):
    async def episode(row):
        environment = Shapes(ShapesConfig(**options))
        await environment.reset(Task(uid=Uid(0, 0), row=row), 0)
        while True:
            text = await environment.oracle()
            action = Action(text=text, token_ids=(), stop=Stop.EOS, turn=0)
            result = await environment.step(action)
            if result.done:
                return result.reward

    rows = islice(Shapes(ShapesConfig(**options)).tasks("eval"), 20)
    assert [asyncio.run(episode(row)) for row in rows] == [1.0] * 20


def test_answers_are_evenly_distributed():
    rows = list(islice(Shapes(ShapesConfig(questions=("color",))).tasks("train"), 2000))
    found = Counter(row["scene"]["color"] for row in rows)

    assert set(found) == set(list(COLORS)[:4])
    assert max(found.values()) < 600
    assert {row["scene"]["kind"] for row in rows} == set(KINDS)
    assert {place for row in rows for place in row["scene"]["places"]} == set(range(len(PLACES)))


@pytest.mark.parametrize(("most", "distractors"), [(1, 0), (1, 3), (2, 2), (3, 0), (3, 1), (4, 0)])
def test_no_scene_is_in_both_splits_and_each_has_every_number_and_kind(most, distractors):
    environment = Shapes(ShapesConfig(most=most, distractors=distractors))
    trained, held_out = (
        [Scene.of(row["scene"]) for row in islice(environment.tasks(split), 500)]
        for split in ("train", "eval")
    )

    assert {repr(scene) for scene in trained} & {repr(scene) for scene in held_out} == set()
    for scenes in (trained, held_out):
        assert {len(scene.places) for scene in scenes} == set(range(1, most + 1))
        assert {scene.kind for scene in scenes} == set(KINDS)
        assert {scene.color for scene in scenes} == set(list(COLORS)[:4])


def test_splits_are_the_same_each_time():
    first, again = (list(Shapes(ShapesConfig()).tasks("eval")) for _ in range(2))

    assert first == again
    assert len(first) == NUM_EVAL
    with pytest.raises(KeyError):
        Shapes(ShapesConfig()).tasks("nowhere")


@pytest.mark.parametrize(
    "options",
    [
        {"most": 3, "distractors": 2},
        {"zoom": True},
        {"zoom_share": 0.5},
        {"size": 8},
        {"questions": ()},
    ],
)
def test_options_that_cannot_be_meant_are_refused(options):
    with pytest.raises(ValidationError):
        ShapesConfig(**options)
