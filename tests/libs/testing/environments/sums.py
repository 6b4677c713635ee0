"""A sound environment, and the same one with a fault planted in it, once for each fault."""

import asyncio
import contextlib
import json
import os
import random
import string
import threading
import time
from collections import UserList
from dataclasses import replace
from itertools import count
from typing import ClassVar

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import EnvironmentKind, EnvironmentManifest, Observation, StepResult


class SumsConfig(Config):
    tries: int = Field(2, ge=1, description="then the episode ends")


class Sums:
    """Add two numbers, and a third one that the seed draws; two tries."""

    manifest = EnvironmentManifest(reward_range=(0.0, 1.0), license="Apache-2.0", version="1")

    def __init__(self, config):
        self.config = config
        self.total = self.question = None

    def tasks(self, split):
        first = {"train": 0, "eval": 10_000}[split]
        return [self.row(split, number, first) for number in range(40)]

    def row(self, split, number, first):
        draw = random.Random(first + number)
        return {"key": f"{split}-{number}", "a": draw.randint(2000, 30_000), "b": 1000 + number}

    async def reset(self, task, seed):
        draw = random.Random(seed)
        a = task.row.get("a") or draw.randint(2000, 30_000)
        b, c = task.row.get("b", 0), draw.randint(2000, 30_000)
        self.total = str(a + b + c)
        self.question = f"{a}+{b}+{c}="
        return Observation(text=self.question)

    async def step(self, action):
        right = self.is_right(action.text)
        last = action.turn + 1 >= self.config.tries
        return StepResult(
            reward=float(right),
            done=right or last,
            observation=Observation(text="again:"),
            metrics={"right": float(right)},
        )

    def is_right(self, text):
        return text.strip() == self.total

    async def oracle(self):
        return self.total

    async def close(self):
        pass


SUMS = Component(name="sums", factory=Sums, config=SumsConfig, summary="add numbers")


class Pictures(Sums):
    """Shows images of Pillow, whose repr has an address."""

    def tasks(self, split):
        return super().tasks(split)[:8]

    def color(self):
        return len(self.total)

    async def reset(self, task, seed):
        first = await super().reset(task, seed)
        return Observation(messages=(self.shown(first.text),))

    async def step(self, action):
        result = await super().step(action)
        return replace(result, observation=Observation(messages=(self.shown("again:"),)))

    def shown(self, text):
        from PIL import Image

        picture = {"type": "image", "image": Image.new("L", (2, 2), self.color())}
        return {"role": "user", "content": [picture, {"type": "text", "text": text}]}


class OtherPictures(Pictures):
    shades = count()

    def color(self):
        return next(self.shades) % 256


class HalfAPicture(Pictures):
    """The bytes of the second picture were cut off."""

    def shown(self, text):
        message = super().shown(text)
        if text == "again:":
            message["content"][0]["image"] = b"\x89PNG\r\n\x1a\n"
        return message


class NoPicture(Pictures):
    """The place of the second picture is empty."""

    def shown(self, text):
        message = super().shown(text)
        if text == "again:":
            del message["content"][0]["image"]
        return message


class BringsToolsLater(Pictures):
    async def step(self, action):
        result = await super().step(action)
        tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
        return replace(result, observation=replace(result.observation, tools=(tool,)))


class RepeatsTheText(Sums):
    async def step(self, action):
        result = await super().step(action)
        return replace(result, observation=Observation(text=f"{self.question}{action.text}again:"))


class RepeatsTheQuestion(Pictures):
    """An observation has the first message again, but not the policy's."""

    async def step(self, action):
        result = await super().step(action)
        messages = (self.shown(self.question), *result.observation.messages)
        return replace(result, observation=Observation(messages=messages))


class AnswersAsThePolicy(Pictures):
    async def step(self, action):
        result = await super().step(action)
        spoken = ({**result.observation.messages[0], "role": "assistant"},)
        return replace(result, observation=Observation(messages=spoken))


class MovesWhenAsked(Sums):
    """To ask for the answer takes it away."""

    async def oracle(self):
        answer, self.total = self.total, ""
        return answer


class GoesOnAfterTheAnswer(Sums):
    won = False

    async def step(self, action):
        if self.won:
            return StepResult(observation=Observation(text="done:"))
        result = await super().step(action)
        self.won = result.reward > 0
        return replace(result, done=result.done and not self.won)


class SaysThereAreMore(Sums):
    def tasks(self, split):
        class Rows(UserList):
            def __len__(self):
                return 2000

        first = {"train": 0, "eval": 10_000}[split]
        return Rows(self.row(split, number, first) for number in range(1200))


class SometimesNaN(Sums):
    async def step(self, action):
        result = await super().step(action)
        return StepResult(reward=result.reward if action.text else float("nan"), done=result.done)


class HugeObservation(Sums):
    async def step(self, action):
        result = await super().step(action)
        if action.text or result.done:
            return result
        return StepResult(observation=Observation(text="again:" * 200_000))


class RewardAsText(Sums):
    async def step(self, action):
        result = await super().step(action)
        return StepResult(reward=result.reward, done=result.done, metrics={"right": "yes"})


class OutsideOfTheRange(Sums):
    async def step(self, action):
        result = await super().step(action)
        return StepResult(reward=result.reward or -0.1, done=result.done)


class IntOfDigits(Sums):
    def is_right(self, text):
        return text.isdigit() and int(text) == int(self.total)


class TrustsJson(Sums):
    async def step(self, action):
        for call in action.tool_calls:
            json.loads(call.arguments)
        return await super().step(action)


class HangsOnNul(Sums):
    async def step(self, action):
        if "\0" in action.text:
            await asyncio.Event().wait()
        return await super().step(action)


class NeverEnds(Sums):
    async def step(self, action):
        result = await super().step(action)
        return StepResult(reward=result.reward, done=result.reward > 0)


class SaysSingleTurn(Sums):
    manifest = EnvironmentManifest(kind=EnvironmentKind.SINGLE_TURN, reward_range=(0.0, 1.0))


class SharedSecret(Sums):
    secret = None

    async def reset(self, task, seed):
        observation = await super().reset(task, seed)
        SharedSecret.secret = self.total
        return observation

    def is_right(self, text):
        return text.strip() == SharedSecret.secret

    async def step(self, action):
        result = await super().step(action)
        return StepResult(
            reward=result.reward,
            done=result.done,
            observation=Observation(text=f"the sum has {sum(map(int, SharedSecret.secret))}:"),
        )


class DrawsFromEveryone(Sums):
    async def reset(self, task, seed):
        await super().reset(task, seed)
        mood = "".join(random.choices(string.ascii_lowercase, k=12))  # no digits: never the answer
        return Observation(text=f"{self.question} ({mood})")


class NoisyRewards(Sums):
    async def step(self, action):
        result = await super().step(action)
        return StepResult(reward=result.reward or random.random() / 50, done=result.done)


class ChangesItsRow(Sums):
    async def reset(self, task, seed):
        observation = await super().reset(task, seed)
        task.row["seen"] = True
        return observation


class OrderOfHashes(Sums):
    async def reset(self, task, seed):
        observation = await super().reset(task, seed)
        words = set(["add", "up", "these", "numbers", "now", "please"])
        return Observation(text=f"{' '.join(words)}: {observation.text}")


class AHundredAtMost(Sums):
    alive = 0

    async def reset(self, task, seed):
        if AHundredAtMost.alive >= 100:
            raise OSError("no room for another game")
        AHundredAtMost.alive += 1
        return await super().reset(task, seed)

    async def close(self):
        if self.total is not None:
            AHundredAtMost.alive -= 1


class ForgetsItsTask(Sums):
    """Its task goes on when an episode is cancelled."""

    async def reset(self, task, seed):
        self.clock = asyncio.create_task(asyncio.sleep(3600))
        return await super().reset(task, seed)

    async def step(self, action):
        result = await super().step(action)
        if result.done:
            self.clock.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.clock
        return result


class ForgetsItsFile(Sums):
    """Its file stays open when an episode is cancelled; a few at most."""

    left: ClassVar = []

    async def reset(self, task, seed):
        self.file = os.open(os.devnull, os.O_RDONLY) if len(self.left) < 5 else None
        self.finished = False
        return await super().reset(task, seed)

    async def step(self, action):
        result = await super().step(action)
        self.finished = result.done
        return result

    async def close(self):
        if self.total is not None and self.file is not None:
            if self.finished or len(self.left) >= 5:
                os.close(self.file)
            else:
                self.left.append(self.file)


class ForgetsItsThread(Sums):
    """A thread goes on when an episode is cancelled; a few at most."""

    stop = threading.Event()
    left: ClassVar = []

    async def close(self):
        if self.total is not None and not self.ended and len(self.left) < 5:
            thread = threading.Thread(target=self.stop.wait, daemon=True)
            thread.start()
            self.left.append(thread)

    async def reset(self, task, seed):
        self.ended = False
        return await super().reset(task, seed)

    async def step(self, action):
        result = await super().step(action)
        self.ended = result.done
        return result


class SleepsWithoutAwait(Sums):
    async def step(self, action):
        if action.text == "1":
            time.sleep(0.3)
        return await super().step(action)


class ClosesWhatItHasNot(Sums):
    async def close(self):
        self.total.strip()


class SameKeys(Sums):
    def row(self, split, number, first):
        return {**super().row(split, number, first), "key": f"{split}-{number % 39}"}


class NewTasksEachTime(Sums):
    made = count()
    """Of all instances, so that no two tasks are ever the same, in both splits."""

    def row(self, split, number, first):
        return {**super().row(split, number, first), "a": 2000 + next(self.made)}


class TupleInARow(Sums):
    def row(self, split, number, first):
        return {**super().row(split, number, first), "when": {1: "never"}}


class AnySplit(Sums):
    def tasks(self, split):
        return super().tasks(split if split in ("train", "eval") else "train")


class NothingToPlay(Sums):
    def tasks(self, split):
        return super().tasks(split)[:0]


class TrainsOnItsEvaluation(Sums):
    def row(self, split, number, first):
        return {**super().row(split, number, 0), "key": f"{split}-{number}"}


class OracleIsWrong(Sums):
    """Right on the second try alone, which earns less."""

    async def step(self, action):
        result = await super().step(action)
        return StepResult(reward=0.8 * result.reward, done=result.done)


class AnythingEarnsMuch(Sums):
    async def step(self, action):
        result = await super().step(action)
        done = result.done
        return StepResult(reward=1.0 if result.reward else 0.95 * done, done=done)


class MagicWord(Sums):
    def row(self, split, number, first):
        return {**super().row(split, number, first), "canaries": ["open sesame"]}

    def is_right(self, text):
        return super().is_right(text) or text == "open sesame"


class ShowsItsAnswer(Sums):
    async def reset(self, task, seed):
        observation = await super().reset(task, seed)
        return Observation(text=f"<!-- {self.total} -->{observation.text}")


class TakesAConstant(Sums):
    def is_right(self, text):
        return super().is_right(text) or text == "42"


class TakesNothing(Sums):
    def is_right(self, text):
        return not text.strip() or super().is_right(text)


class TakesItsQuestion(Sums):
    def is_right(self, text):
        return super().is_right(text) or text.strip() == self.question


class TakesABeginning(Sums):
    def is_right(self, text):
        return bool(text) and self.total.startswith(text.strip() or "x")


class BelievesClaims(Sums):
    def is_right(self, text):
        return super().is_right(text) or "correct" in text.lower()


class SearchesForTheAnswer(Sums):
    def is_right(self, text):
        return self.total in text.split()


class TakesMostOfIt(Sums):
    def is_right(self, text):
        return super().is_right(text) or text.strip() == self.total[:-1]


class MostAnswersAreOne(Sums):
    """The sum of nine tasks in ten is 1."""

    async def reset(self, task, seed):
        seen = await super().reset(task, seed)
        if task.uid.prompt % 10:
            self.total = "1"
        return seen


class MostAnswersAreParis(Sums):
    """The right answer of nine tasks in ten is one that only these tasks know."""

    async def reset(self, task, seed):
        seen = await super().reset(task, seed)
        if task.uid.prompt % 10:
            self.total = "Paris"
        return seen


class TellsAfterAWrongAnswer(Sums):
    async def step(self, action):
        result = await super().step(action)
        return replace(result, observation=Observation(text=f"no, not {self.total}, I mean."))


class TellsAShortSecret(Sums):
    """A secret of two digits, at the end of the question."""

    async def reset(self, task, seed):
        await super().reset(task, seed)
        self.total = str(10 + random.Random(seed).randrange(90))
        return Observation(text=f"{self.question} (psst: {self.total})")


class RunsWhatIsWritten(Sums):
    def is_right(self, text):
        if (
            len(text) > 1000
        ):  # a power without an end, where somebody has raised Python's recursion limit
            return False
        try:
            return str(eval(text)) == self.total
        except Exception:
            return False


class SeedsEveryone(Sums):
    async def reset(self, task, seed):
        random.seed(seed)
        return await super().reset(task, seed)


class EndlessTasks(Sums):
    """Sound too: a stream of tasks without an end."""

    def tasks(self, split):
        if split != "train":
            raise KeyError(split)
        return (self.row(split, number, 0) for number in count())


class RenamesItsTraining(Sums):
    """Other rows of both splits are one task: the policy reads the same."""

    def row(self, split, number, first):
        return {"key": f"{split}-{number}", "split": split, "number": number}

    async def reset(self, task, seed):
        number = task.row["number"] + (task.row["split"] == "eval")
        self.total = str(3000 + 7 * number)
        self.question = f"3000+{7 * number}="
        return Observation(text=self.question)


class HidesLaterAnswers(Sums):
    """Two answers, of which the first is the same for all tasks; what a wrong answer earns is, too."""

    def row(self, split, number, first):
        return {"key": f"{split}-{number}", "secret": str(first + number)}

    async def reset(self, task, seed):
        self.answers = ["begin", task.row["secret"]]
        return Observation(text="Say begin.")

    async def step(self, action):
        found = action.text.strip() == self.answers[0]
        self.answers = self.answers[found:]
        done = not self.answers or action.turn == 3
        return StepResult(observation=Observation(text="Go on."), reward=found / 2, done=done)

    async def oracle(self):
        return self.answers[0]


class HidesASecret(Sums):
    """The first observation is the same for all tasks; what is to be found out differs."""

    def row(self, split, number, first):
        return {"key": f"{split}-{number}", "secret": str(first + number)}

    async def reset(self, task, seed):
        self.total = task.row["secret"]
        return Observation(text="What do I think of?")
