"""Fuzzed episodes over tokenizers of every kind: what trains is what was sampled, token by token and once.

A policy writes tokens at random, marks of calls and thoughts among them; an environment answers with texts, messages
or results of parallel calls in any order, which spell control words. Requests are retried, histories rendered again,
compacted to a summary, and asked about by a second agent. Each sampled token has a log-prob of its own, by which it is
found again in the trajectories.
"""

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from tests.libs.data.chat.zoo import KINDS, renderer_of, tools_of

from rlhf_core.contracts import Completion, Stop, Uid
from rlhf_episodes import EpisodeGraph

QUICK, SLOW, ALL = range(5), range(5, 60), range(60, 840)
"""Seeds of each kind of tokenizer: 12 kinds with 840 episodes each are more than 10 000 in all."""
TEXTS = ["What is this?", "  so\n\n", "é 😀 漢字", '{"a": 1}', "a\tb", "The answer is 4, I think."]


class Script:
    """Random choices of one episode."""

    def __init__(self, name, seed):
        self.name = name
        self.random = random.Random(f"{name} {seed}")
        self.renderer = renderer_of(name)
        self.words = self.renderer.texts.words.ids
        tokenizer = self.renderer.tokenizer
        self.end = tokenizer.convert_tokens_to_ids(KINDS[name].end)
        self.plain = sorted(set(range(len(tokenizer))) - set(self.words.values()))
        self.marks = [
            token for word, token in self.words.items() if word not in self.renderer.turn_words
        ]

    def text(self):
        parts = [self.random.choice(TEXTS)]
        if self.random.random() < 0.6:
            parts.append(self.random.choice(sorted(self.words)))
        self.random.shuffle(parts)
        return " ".join(parts)

    def answer(self):
        """Tokens of an answer, and whether it ended."""
        kind = self.random.randrange(4)
        if kind == 0:  # tokens that no tokenizer would write for their text
            ids = self.random.choices(self.plain, k=self.random.randint(1, 12))
        elif kind == 1 and self.marks:
            ids = self.random.choices(self.marks + self.plain[:40], k=self.random.randint(1, 12))
        elif kind == 2 and "<tool_call>" in self.words:
            call = self.renderer.encode('{"name": "add", "arguments": {"a":1,  "b": false}}')
            ids = [self.words["<tool_call>"], *call, self.words["</tool_call>"]]
            ids *= self.random.randint(1, 3)
        else:
            ids = self.renderer.encode(self.random.choice(TEXTS)) or self.plain[:1]
        ended = self.random.random() < 0.8
        return ids + [self.end] * ended, ended

    def messages(self, num_calls):
        if num_calls and self.name not in ("chatml", "rewriting", "opened thought", "words"):
            results = [{"role": "tool", "content": self.text()} for _ in range(num_calls)]
            self.random.shuffle(results)
            return results
        return [{"role": "user", "content": self.text()}]


@dataclass
class Course:
    """What happened in an episode: the graph, and every token that was sampled and kept."""

    graph: EpisodeGraph
    kept: dict[float, int] = field(default_factory=dict)
    """Log-prob of each token that was sampled and not discarded -> the token."""
    requests: list[tuple] = field(default_factory=list)
    count: int = 0

    def ask(self, prompt, ids, agent="", *, used=True):
        logprobs = -np.arange(self.count + 1, self.count + len(ids) + 1, dtype=np.float32)
        self.count += len(ids)
        completion = Completion(
            token_ids=np.array(ids, dtype=np.int32),
            logprobs=logprobs,
            weight_version=np.zeros(len(ids), dtype=np.int32),
            stop=Stop.EOS,
        )
        node = self.graph.add(prompt, completion, agent)
        if used:
            self.kept |= dict(zip(logprobs.tolist(), ids, strict=True))
            self.requests.append((node, tuple(prompt), tuple(ids)))
        else:
            self.graph.discard(node)
        return node


def play(name, seed):
    """Play one episode and return its course; checks on the way what is true of single requests."""
    script = Script(name, seed)
    renderer, choice = script.renderer, script.random
    course = Course(EpisodeGraph(Uid(0, 0)))
    conversation = [{"role": "user", "content": script.text()}]
    tools = tools_of(name) if choice.random() < 0.5 else []
    prompt = renderer.render(conversation, tools)
    for turn in range(choice.randint(1, 5)):
        ids, ended = script.answer()
        # The answer of an abandoned retry that a later request reads, token by token, would be one that was used.
        other = next(token for token in script.plain if token != ids[0])
        if choice.random() < 0.2:
            course.ask(prompt, [other, *script.answer()[0]], used=False)
        course.ask(prompt, ids)
        answer = renderer.parse(ids, prompt_ids=prompt)
        conversation.append(answer.message())
        if choice.random() < 0.15:  # a second agent with a question of its own
            course.ask(
                renderer.render([{"role": "user", "content": script.text()}]),
                [*script.plain[:3]],
                "judge",
            )
        if choice.random() < 0.15:  # the history becomes a summary
            conversation = [{"role": "user", "content": f"Summary: {answer.text}"}]
            prompt = renderer.render(conversation, tools)
            continue
        if choice.random() < 0.2:  # an observation that is plain text
            prompt = [*prompt, *ids, *renderer.encode(script.text())]
            continue
        messages = script.messages(len(answer.tool_calls))
        so_far = [*prompt, *ids]
        as_template = turn % 2 == 1
        continued = renderer.extend(
            conversation, so_far, messages, ended=ended, tools=tools, as_template=as_template
        )
        assert as_template or not continued.forked
        assert (
            continued.forked == (not _begins_with(continued.token_ids, so_far)) or continued.forked
        )
        if not continued.forked:
            check_only_the_template_wrote_control_tokens(
                script, continued.token_ids[len(so_far) :], messages
            )
        prompt = list(continued.token_ids)
        conversation += messages
    return course


def _begins_with(ids, start):
    return list(ids[: len(start)]) == list(start)


def check_only_the_template_wrote_control_tokens(script, following, messages):
    """As many control tokens as with contents that spell none, whichever way the turn before ended."""
    known = set(script.words.values()) - {script.renderer.tokenizer.unk_token_id, script.end}
    plain = [{**message, "content": "x"} for message in messages]
    for tools in ([], tools_of(script.name)):
        wanted = script.renderer.render_next(plain, ended=True, tools=tools)
        if [one for one in wanted if one in known] == [one for one in following if one in known]:
            return
    raise AssertionError("an observation became control tokens")


def check(course):
    """The ids that train are those that were sampled, the masks cover them alone, and each is there once."""
    if not course.requests:
        return
    for node, prompt, ids in course.requests:
        assert tuple(node.path_ids) == (*prompt, *ids)
    trained = {}
    for trajectory in course.graph.trajectories():
        actions = trajectory.token_ids[trajectory.action_mask].tolist()
        logprobs = trajectory.rollout_logprobs.tolist()
        assert len(actions) == len(logprobs)
        for logprob, token in zip(logprobs, actions, strict=True):
            assert logprob not in trained, "a token trains twice"
            trained[logprob] = token
    assert trained == course.kept


def play_all(name, seeds):
    forks = 0.0
    for seed in seeds:
        course = play(name, seed)
        check(course)
        forks += course.graph.metrics()["graph/forks"]
    return forks


@pytest.mark.parametrize("name", KINDS)
def test_trained_tokens_are_the_sampled_ones(name):
    play_all(name, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_trained_tokens_are_the_sampled_ones_in_more_episodes(name):
    forks = play_all(name, SLOW)

    assert forks > 0 or name not in ("rewriting", "thinking", "opened thought", "mistral")


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("name", KINDS)
def test_trained_tokens_are_the_sampled_ones_in_all_episodes(name):
    play_all(name, ALL)


def test_there_are_ten_thousand_episodes_of_eight_kinds():
    assert len(KINDS) >= 8
    assert len(KINDS) * (len(QUICK) + len(SLOW) + len(ALL)) >= 10_000
