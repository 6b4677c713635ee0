"""What metrics get of the records of an evaluation."""

from rlhf_plugin_inference.evaluate.measuring import episodes_of
from rlhf_plugin_inference.evaluate.records import EpisodeRecord, Segment


def record(prompt, sample, reward, **changes):
    given = {
        "set": "held",
        "temperature": 1.0,
        "uid": f"-1.{prompt}.{sample}.0",
        "task": str(prompt),
        "digest": "",
        "prompt": "",
        "messages": None,
        "response": "answer, hint and answer",
        "segments": (),
        "reward": reward,
        "end": "finished",
        "turns": 1,
        "tokens_in": 1,
        "tokens_out": 9,
        "truncated": False,
    }
    return EpisodeRecord(**given | changes)


def said(text, role="assistant"):
    return {"role": role, "content": text}


def decode(tokens):
    return "".join(map(str, tokens))


def test_what_an_environment_said_is_left_out_and_prompts_are_numbered_by_their_order():
    turns = Segment(token_ids=(9, 1, 2, 9, 3), turns=((1, 3), (4, 5)))
    more = Segment(token_ids=(9, 4), turns=((1, 2),))
    records = [
        record(7, 0, 0.5, segments=(turns, more)),
        record(7, 1, 1.0, segments=(turns,)),
        record(3, 0, 0.1, segments=()),
    ]

    found = episodes_of(records, decode, threshold=0.5)

    assert found.prompt.tolist() == [0, 0, 1]
    assert found.responses == ("1234", "123", "")
    assert found.num_actions.tolist() == [4, 3, 0]
    assert found.passed.tolist() == [True, True, False]
    assert (found.set_name, found.temperature) == ("held", 1.0)


def test_of_a_server_its_own_answers_are_the_last_ones():
    talk = (said("shown"), said("go", "user"), said("a"), said("hint", "user"), said("b"))

    found = episodes_of(
        [record(0, 0, 1.0, segments=None, messages=talk, turns=2)], decode, threshold=1
    )

    assert found.responses == ("ab",)
    assert found.num_actions.tolist() == [9]
